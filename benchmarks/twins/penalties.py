"""Twins of `headrace.actors.learner.penalties`."""

from __future__ import annotations

import math


def overlong(length: int, maximum: int, margin: int) -> float:
    """DAPO eq. 13, with the sign turned: what is taken off."""
    if length <= maximum - margin:
        return 0.0
    if length <= maximum:
        return (length - (maximum - margin)) / margin
    return 1.0


def concave(x: float, k: float, q: float) -> float:
    """C(x) = ((1 + kx)^(1−q) − 1) / (k(1−q)), whose limit at q = 1 is log(1 + kx) / k."""
    if q == 1:
        return math.log(1 + k * x) / k
    return ((1 + k * x) ** (1 - q) - 1) / (k * (1 - q))
