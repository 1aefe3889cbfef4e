"""Twins of `headrace.actors.learner.penalties`."""

from __future__ import annotations

from decimal import Decimal, localcontext


def overlong(length: int, maximum: int, margin: int) -> float:
    """DAPO eq. 13, with the sign turned: what is taken off."""
    if length <= maximum - margin:
        return 0.0
    if length <= maximum:
        return (length - (maximum - margin)) / margin
    return 1.0


def concave(x: float, k: float, q: float) -> float:
    """C(x) = ((1 + kx)^(1−q) − 1) / (k(1−q)), whose limit at q = 1 is log(1 + kx) / k. In 60 digits: float64 loses
    half of its own where kx is small."""
    with localcontext(prec=60):
        base, exact_k, exponent = 1 + Decimal(k) * Decimal(x), Decimal(k), 1 - Decimal(q)
        return float(base.ln() / exact_k if q == 1 else (base**exponent - 1) / (exact_k * exponent))
