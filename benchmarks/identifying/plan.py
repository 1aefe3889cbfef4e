"""What is done to each update of a run, drawn from its seed. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

FAULTS = ("flipped byte", "removed segment", "wrong shape")
MOMENTS = ("in an update", "while it decodes", "in an update", "while it starts")
"""when a generator is killed, in turn"""
_FAULTY = 0.1
_HURRIED = 0.2


@dataclass(frozen=True, slots=True)
class Update:
    """fault: what is done to the staged version before it is announced. kill: one of MOMENTS. fraction: of the moment's
    length, in [0, 1). hurried: the next version follows before this one is served. settle_s: until the next."""

    fault: str | None = None
    kill: str | None = None
    fraction: float = 0.0
    hurried: bool = False
    settle_s: float = 0.0


def draw_plan(seed: int, num_updates: int, num_kills: int, *, settle_s: float) -> list[Update]:
    """Kills are spread evenly, at a random place of each part. The first update and the last are without faults."""
    generator = np.random.default_rng(seed)
    bounds = np.linspace(1, num_updates - 1, num_kills + 1).astype(int)
    kills = {int(generator.integers(low, high)): i for i, (low, high) in enumerate(itertools.pairwise(bounds))}
    plan = []
    for index in range(num_updates):
        plain = index in (0, num_updates - 1)
        kill = MOMENTS[kills[index] % len(MOMENTS)] if index in kills else None
        faulty = generator.random() < _FAULTY and not plain and kill is None
        fault = str(generator.choice(FAULTS)) if faulty else None
        hurried = bool(generator.random() < _HURRIED) and not plain and kill is None and fault is None
        fraction, settle = float(generator.random()), settle_s * float(generator.random())
        plan.append(Update(fault, kill, fraction, hurried, settle))
    return plan
