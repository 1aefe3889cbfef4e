"""How far the learner's log-probs lie from those the engine reported, apart for tokens of the learner's own weights
(engine mismatch: other kernels, other precision) and for older tokens (mismatch and staleness together)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Gap:
    """Mean and largest |log pi − log mu| over `num_tokens` tokens; 0 where there are none. `kl`: the mean of
    mu's k3 estimate of KL(mu || pi), e^d − 1 − d with d = log pi − log mu."""

    num_tokens: int
    mean_abs: float
    max_abs: float
    kl: float


def gap(logprobs_N: np.ndarray, behaviour_logprobs_N: np.ndarray) -> Gap:
    """float[N] each."""
    if len(logprobs_N) == 0:
        return Gap(0, 0.0, 0.0, 0.0)
    difference_N = logprobs_N.astype(np.float64) - behaviour_logprobs_N.astype(np.float64)
    clamped_N = np.clip(difference_N, -20.0, 20.0)
    return Gap(
        num_tokens=len(difference_N),
        mean_abs=float(np.abs(difference_N).mean()),
        max_abs=float(np.abs(difference_N).max()),
        kl=float((np.exp(clamped_N) - 1.0 - clamped_N).mean()),
    )


def gaps_by_age(logprobs_N: np.ndarray, behaviour_logprobs_N: np.ndarray, lags_N: np.ndarray) -> tuple[Gap, Gap]:
    """(tokens of lag 0, older tokens). lags_N: int[N], optimizer steps."""
    same_N = lags_N == 0
    return (
        gap(logprobs_N[same_N], behaviour_logprobs_N[same_N]),
        gap(logprobs_N[~same_N], behaviour_logprobs_N[~same_N]),
    )
