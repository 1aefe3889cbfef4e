"""The advantage rules of docs/algorithms/advantages.md, one reward at a time. A batch is a list of groups, a group
is a list of (class of its task, reward)."""

from __future__ import annotations

import math

Batch = list[list[tuple[str, float]]]


def rloo(batch: Batch) -> list[float]:
    out = []
    for group in batch:
        for i, (_, reward) in enumerate(group):
            others = [other for j, (_, other) in enumerate(group) if j != i]
            out.append(reward - math.fsum(others) / len(others))
    return out


def group_mean(batch: Batch) -> list[float]:
    return [reward - _mean(group) for group in batch for _, reward in group]


def grpo(batch: Batch, epsilon: float = 1e-6) -> list[float]:
    out = []
    for group in batch:
        mean = _mean(group)
        variance = math.fsum((reward - mean) ** 2 for _, reward in group) / (len(group) - 1)
        out += [(reward - mean) / (math.sqrt(variance) + epsilon) for _, reward in group]
    return out


def batch(batch: Batch, epsilon: float = 1e-6) -> list[float]:
    centred = group_mean(batch)
    mean = math.fsum(centred) / len(centred)
    variance = math.fsum((value - mean) ** 2 for value in centred) / len(centred)
    return [value / (math.sqrt(variance) + epsilon) for value in centred]


class RunningMean:
    def __init__(self, decay: float = 0.9) -> None:
        self.decay = decay
        self.means: dict[str, float] = {}

    def __call__(self, batch: Batch) -> list[float]:
        rewards: dict[str, list[float]] = {}
        for group in batch:
            for name, reward in group:
                rewards.setdefault(name, []).append(reward)
        now = {name: math.fsum(values) / len(values) for name, values in rewards.items()}
        out = [reward - self.means.get(name, now[name]) for group in batch for name, reward in group]
        for name, mean in now.items():
            self.means[name] = self.decay * self.means.get(name, mean) + (1 - self.decay) * mean
        return out


def _mean(group: list[tuple[str, float]]) -> float:
    return math.fsum(reward for _, reward in group) / len(group)
