"""Lag: how many optimizer steps old the weights were that sampled a token. A session is as old as its oldest token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def token_lags(versions_N: np.ndarray, version_steps: Mapping[int, int], step: int) -> np.ndarray:
    """int[N] versions → int64[N], `step` − the step of the token's version. Raises KeyError for an unknown version."""
    unique, inverse_N = np.unique(versions_N, return_inverse=True)
    missing = [int(v) for v in unique if int(v) not in version_steps]
    if missing:
        raise KeyError(
            f"tokens of versions {missing} but only {sorted(version_steps)} were ever published; the generators serve "
            "weights that this learner did not make"
        )
    lags: np.ndarray = np.array([step - version_steps[int(v)] for v in unique], dtype=np.int64)
    return lags[inverse_N]


def lag_figures(lags_N: np.ndarray, sequence_N: np.ndarray) -> dict[str, float]:
    """Mean, median, p95 and max by token, mean and max by session (its oldest token). N >= 1."""
    oldest_S = np.zeros(int(sequence_N.max()) + 1, dtype=np.int64)
    np.maximum.at(oldest_S, sequence_N, lags_N)
    return {
        "lag/token_mean": float(lags_N.mean()),
        "lag/token_p50": float(np.percentile(lags_N, 50)),
        "lag/token_p95": float(np.percentile(lags_N, 95)),
        "lag/token_max": float(lags_N.max()),
        "lag/session_mean": float(oldest_S.mean()),
        "lag/session_max": float(oldest_S.max()),
    }
