"""Twins of `headrace.actors.learner.corrections`. A sequence is a list of `Token`; each twin gives its factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """Log-probabilities by pi, pi_old and mu; A; lag in optimizer steps."""

    pi: float
    old: float
    mu: float
    advantage: float = 1.0
    lag: int = 0


def clamped(log_ratio: float) -> float:
    return max(-20.0, min(20.0, log_ratio))


def ratio(token: Token) -> float:
    """m = pi_old / mu."""
    return math.exp(clamped(token.old - token.mu))


def tis(sequence: Sequence[Token], cap: float = 2.0) -> list[float]:
    return [min(ratio(token), cap) for token in sequence]


def icepop(sequence: Sequence[Token], low: float = 0.5, high: float = 5.0) -> list[float]:
    return [ratio(token) if low <= ratio(token) <= high else 0.0 for token in sequence]


def mis_token(sequence: Sequence[Token], low: float = 0.5, high: float = 2.0) -> list[float]:
    return [1.0 if low <= ratio(token) <= high else 0.0 for token in sequence]


def mis_sequence(sequence: Sequence[Token], low: float = 0.5, high: float = 2.0) -> list[float]:
    product = math.exp(max(-700.0, min(700.0, math.fsum(clamped(t.old - t.mu) for t in sequence))))
    return [1.0 if low <= product <= high else 0.0] * len(sequence)


def veto(sequence: Sequence[Token], below: float = 1e-4) -> list[float]:
    return [0.0 if any(ratio(token) < below for token in sequence) else 1.0] * len(sequence)


def opsm(sequence: Sequence[Token], delta: float = 0.5, policy: str = "behaviour") -> list[float]:
    olds = [token.mu if policy == "behaviour" else token.old for token in sequence]
    mean = math.fsum(clamped(old - t.pi) for old, t in zip(olds, sequence, strict=True)) / len(sequence)
    advantage = math.fsum(t.advantage for t in sequence) / len(sequence)
    return [0.0 if advantage < 0 and mean > delta else 1.0] * len(sequence)


def geo(sequence: Sequence[Token], low: float = 0.999, high: float = 1.001) -> list[float]:
    logs = [clamped(t.old - t.mu) for t in sequence if t.lag == 0]
    kept = not logs or low <= math.exp(math.fsum(logs) / len(logs)) <= high
    return [float(kept)] * len(sequence)
