"""Which faults strike a run, and when. Pure: a seed gives the plan, whatever the machine's speed.

A moment is a position of the run (a phase and a step of it) and a delay after that; the faults of a plan strike one
after the other, in the order of their positions. Some follow the one before within seconds, wherever the run is then:
what is still recovering is struck again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

STOP_SHARE = 0.5
"""of the runs: one SIGSTOP beside the kills"""
CHAIN_SHARE = 0.25
"""of the faults: they follow the one before"""
CHAIN_S, START_S, DELAY_S = 5.0, 8.0, 0.4
NEAR_END_STEPS = 4


class Phase(IntEnum):
    STARTING = 0
    PRETRAINING = 1
    TRAINING = 2


class Position(NamedTuple):
    """How far a run is. A learner that goes on from a checkpoint moves it back."""

    phase: Phase
    step: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the run: optimizer steps of pre-training and training, training steps between two evaluations."""

    pretrain_steps: int
    max_steps: int
    evaluation_every_steps: int


@dataclass(frozen=True, slots=True)
class Fault:
    """`kinds`: all kinds of processes, the wanted one first; the first of which one lives is struck. `delay_s` counts
    from when the run has come to `position` and the fault before has struck."""

    signal: str
    kinds: tuple[str, ...]
    moment: str
    position: Position
    delay_s: float


def draw_faults(seed: int, kinds: Sequence[str], shape: Shape, *, num_kills: int = 5) -> tuple[Fault, ...]:
    """`num_kills` times SIGKILL, and in every other run one SIGSTOP; no kind is wanted more than twice."""
    rng = random.Random(seed)
    signals = ["SIGKILL"] * num_kills
    if rng.random() < STOP_SHARE:
        signals.insert(rng.randrange(num_kills), "SIGSTOP")
    wanted = rng.sample([*kinds, *kinds], len(signals))
    moments = sorted((_draw_moment(rng, shape) for _ in signals), key=lambda moment: moment[1])
    faults: list[Fault] = []
    for signal, kind, (moment, position, delay_s) in zip(signals, wanted, moments, strict=True):
        if faults and rng.random() < CHAIN_SHARE:
            moment, position, delay_s = "chain", faults[-1].position, rng.uniform(0, CHAIN_S)
        others = rng.sample([other for other in kinds if other != kind], len(kinds) - 1)
        faults.append(Fault(signal, (kind, *others), moment, position, delay_s))
    return tuple(faults)


def _draw_moment(rng: random.Random, shape: Shape) -> tuple[str, Position, float]:
    """A name, the position, and the seconds after it."""
    (moment,) = rng.choices(["start", "pretrain", "train", "evaluation", "end"], [1, 2, 5, 2, 1])
    delay_s = rng.uniform(0, DELAY_S)
    if moment == "start":
        return moment, Position(Phase.STARTING, 0), rng.uniform(0, START_S)
    if moment == "pretrain":
        return moment, Position(Phase.PRETRAINING, rng.randint(1, shape.pretrain_steps)), delay_s
    if moment == "evaluation":
        every = shape.evaluation_every_steps
        return moment, Position(Phase.TRAINING, every * rng.randint(1, (shape.max_steps - 1) // every)), delay_s
    last = shape.max_steps - NEAR_END_STEPS
    if moment == "end":
        return moment, Position(Phase.TRAINING, rng.randint(last, shape.max_steps - 1)), delay_s
    return moment, Position(Phase.TRAINING, rng.randint(1, last)), delay_s
