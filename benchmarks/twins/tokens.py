"""What a twin of an objective sees: one sequence, one token after the other, in Python's own float64.

A twin computes values only. Its gradient comes from the complex step: f(x + ih).imag / h is f'(x) to the last digit
where f is analytic, as every objective is between its kinks. What a paper puts behind a stop-gradient is computed from
`held`.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Number = float | complex
STEP = 1e-30
LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Token:
    """logp: log pi, which the gradient goes through. held: the same number, behind a stop-gradient. mu, old: log mu and
    log pi_old. lag: optimizer steps behind."""

    logp: Number
    held: float
    mu: float
    old: float
    advantage: float
    lag: int = 0


Twin = Callable[[Sequence[Token]], list[Number]]
"""one sequence → J at each token"""


def ratio(log_ratio: Number) -> Number:
    """exp, of ±20 where it is further out: there it has no slope."""
    if log_ratio.real > LARGEST_LOG_RATIO:
        return math.exp(LARGEST_LOG_RATIO)
    if log_ratio.real < -LARGEST_LOG_RATIO:
        return math.exp(-LARGEST_LOG_RATIO)
    return cmath.exp(log_ratio)


def smaller(a: Number, b: Number) -> Number:
    return a if a.real <= b.real else b


def clip(x: Number, low: float, high: float) -> Number:
    return low if x.real < low else high if x.real > high else x


def gradient(twin: Twin, sequence: Sequence[Token]) -> list[float]:
    """Of the sum of J over the sequence, by the log pi of each token."""
    slopes = []
    for t, token in enumerate(sequence):
        moved = [*sequence[:t], replace(token, logp=token.logp + STEP * 1j), *sequence[t + 1 :]]
        slopes.append(sum(complex(value) for value in twin(moved)).imag / STEP)
    return slopes
