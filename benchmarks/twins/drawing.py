"""Random inputs that reach every branch: ratios of all sizes, both signs of A, lags, groups of any size."""

from __future__ import annotations

import numpy as np

from twins import advantages, aggregation
from twins.tokens import Token

SPREADS = (1e-4, 0.02, 0.3, 2.0, 15.0)
"""of the log-ratios: from less than gspo's clip to past the clamp of ±20"""
UNCLAMPED = SPREADS[:-1]
"""for comparisons with what has no clamp"""


def sequences(rng: np.random.Generator, num: int = 6, *, spreads: tuple[float, ...] = SPREADS) -> list[list[Token]]:
    """Each with one advantage, one spread, and tokens of several lags."""
    return [_sequence(rng, float(rng.choice(spreads))) for _ in range(num)]


def _sequence(rng: np.random.Generator, spread: float) -> list[Token]:
    advantage = float(rng.choice([0.0, rng.normal(), rng.normal()]))
    tokens = []
    for _ in range(int(rng.integers(1, 12))):
        logp = -float(rng.exponential(1.5))
        old, mu = (min(0.0, logp + float(rng.normal(0, spread))) for _ in range(2))
        tokens.append(Token(logp, logp, mu, old, advantage, int(rng.integers(0, 6))))
    return tokens


def rewards(rng: np.random.Generator) -> advantages.Batch:
    """Groups of at least two; rewards of 0 and 1, or any."""
    graded = rng.random() < 0.5
    return [
        [
            (name, float(rng.normal(0, 3)) if graded else float(rng.integers(0, 2)))
            for _ in range(int(rng.integers(2, 9)))
        ]
        for name in rng.choice(["easy", "hard", "other"], int(rng.integers(1, 7)))
    ]


def episode(rng: np.random.Generator) -> tuple[list[float], list[float], list[float]]:
    """Rewards, values and pi_old / mu of one sequence's tokens."""
    num = int(rng.integers(1, 40))
    return list(rng.normal(0, 1, num)), list(rng.normal(0, 1, num)), list(np.exp(rng.normal(0, 0.7, num)))


def lengths(rng: np.random.Generator) -> list[int]:
    return [int(length) for length in rng.integers(1, 60, 20)]


def terms(rng: np.random.Generator) -> aggregation.Batch:
    return [
        [list(rng.normal(0, 2, int(rng.integers(1, 40)))) for _ in range(int(rng.integers(1, 6)))]
        for _ in range(int(rng.integers(1, 6)))
    ]
