"""Twins of `headrace.actors.learner.kl` and of what a KL in the reward makes of advantages: (value, d value / d log pi)
of one token; l = log(pi / pi_ref)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def _log_ratio(pi: float, ref: float) -> tuple[float, float]:
    raw = pi - ref
    return max(-20.0, min(20.0, raw)), float(-20.0 <= raw <= 20.0)


def k1(pi: float, ref: float, beta: float) -> tuple[float, float]:
    ell, slope = _log_ratio(pi, ref)
    return beta * ell, beta * slope


def k2(pi: float, ref: float, beta: float) -> tuple[float, float]:
    ell, slope = _log_ratio(pi, ref)
    return beta * ell**2 / 2, beta * ell * slope


def k3(pi: float, ref: float, beta: float) -> tuple[float, float]:
    ell, slope = _log_ratio(pi, ref)
    return beta * (math.exp(-ell) - 1 + ell), beta * (1 - math.exp(-ell)) * slope


def reinforce_pp(
    advantages: Sequence[float], penalties: Sequence[Sequence[float]], *, whiten: bool, epsilon: float = 1e-8
) -> list[list[float]]:
    """A_{i,t} = A_i − sum of penalties from t on; whitened over all tokens of the batch."""
    credited = [[a - math.fsum(row[t:]) for t in range(len(row))] for a, row in zip(advantages, penalties, strict=True)]
    if not whiten:
        return credited
    flat = [x for row in credited for x in row]
    mean = math.fsum(flat) / len(flat)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in flat) / len(flat))
    return [[(x - mean) / (std + epsilon) for x in row] for row in credited]
