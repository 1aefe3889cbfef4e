"""Means with standard errors, and pass@k, for evaluations. Pure; NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` values; `stderr` is 0 where it cannot be estimated."""

    mean: float
    n: int
    stderr: float


def clustered_mean(clusters: Sequence[Sequence[float]]) -> Estimate | None:
    """The mean of all values; samples of one prompt are not independent, so its standard error comes from the clusters:
    sqrt(sum_c (sum_i (x_ci - mean))^2 * C/(C-1)) / n, that of E. Miller, "Adding error bars to evals" (arXiv
    2411.00640), with the usual correction for C clusters. With one value a cluster it is s / sqrt(n). None without
    values.
    """
    filled = [np.asarray(cluster, dtype=np.float64) for cluster in clusters if len(cluster)]
    if not filled:
        return None
    values = np.concatenate(filled)
    mean = float(values.mean())
    count = len(filled)
    if count < 2:
        return Estimate(mean, len(values), 0.0)
    residuals = np.array([float((cluster - mean).sum()) for cluster in filled])
    variance = float((residuals**2).sum()) * count / (count - 1)
    return Estimate(mean, len(values), sqrt(variance) / len(values))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The unbiased estimator 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1)."""
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@k needs 1 <= k <= samples, got k={k} with {num_samples} samples")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def mean_pass_at_k(clusters: Sequence[Sequence[float]], k: int, pass_reward: float) -> Estimate | None:
    """pass@k averaged over the prompts that have at least k graded samples; n counts prompts, each of which is one
    value: its standard error is s / sqrt(n)."""
    values = [
        [pass_at_k(len(rewards), sum(reward >= pass_reward - 1e-6 for reward in rewards), k)]
        for rewards in clusters
        if len(rewards) >= k
    ]
    return clustered_mean(values)
