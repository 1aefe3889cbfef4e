"""Effective sample size of importance weights: ESS / N = (Σw)² / (N · Σw²), in (0, 1]; 1 when all weights are equal."""

from __future__ import annotations

import numpy as np

from headrace.actors.learner.objectives.protocol import MAX_ABS_LOG_RATIO


def token_ess(log_ratios_N: np.ndarray) -> float:
    """float[N] log(pi / mu) by token → ESS / N. N >= 1."""
    return _ess(log_ratios_N)


def sequence_ess(log_ratios_N: np.ndarray, sequence_N: np.ndarray) -> float:
    """As `token_ess`, with a sequence's weight the product of its tokens' weights. sequence_N: int[N], 0 .. S − 1."""
    sums_S = np.bincount(sequence_N, weights=log_ratios_N.astype(np.float64))
    present_S = np.bincount(sequence_N) > 0
    return _ess(sums_S[present_S])


def _ess(log_weights: np.ndarray) -> float:
    weights = np.exp(np.clip(log_weights.astype(np.float64), -MAX_ABS_LOG_RATIO, MAX_ABS_LOG_RATIO))
    return float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))
