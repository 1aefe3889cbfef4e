"""The parts of a learner that make a step of a batch, without its life as an actor. Pure data; made by the learner,
used by replay.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.actors.learner.advantages import Advantage
from headrace.actors.learner.kl import KlPenalty
from headrace.actors.learner.penalties import RewardPenalty
from headrace.actors.learner.schedule import LearningRate

if TYPE_CHECKING:
    from headrace.actors.learner.workbench import Workbench


@dataclass(frozen=True, slots=True)
class Recipe:
    """make_bench: (threads), or (threads, ranks) at a rank of several; to be called by `ComputeThreads.run`.
    num_threads: of those."""

    make_bench: Callable[..., Workbench]
    num_threads: int | None
    advantage: Advantage
    penalties: Mapping[str, RewardPenalty]
    learning_rate: LearningRate
    kl: KlPenalty | None
    device: str = "cpu"
