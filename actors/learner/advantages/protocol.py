"""What an advantage rule is given and gives back. Rules are pure NumPy and see the rewards of a whole batch.

Missing rewards never reach a rule: `headrace.actors.learner.intake` leaves them out, gives their members advantage 0
and takes their tokens out of the loss, and passes over groups with fewer than `min_rewards` rewards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class BatchRewards:
    """rewards_S: float64, finite. group_S: int64, which of the G groups, 0 .. G − 1, each with at least one reward.
    classes_S: the class of each sequence's task, by its name."""

    rewards_S: np.ndarray
    group_S: np.ndarray
    classes_S: tuple[str, ...]

    def by_group(self, rule: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """float64[S]: `rule` (float64[G] → float64[G]) of each group by itself."""
        out_S = np.zeros(len(self.rewards_S))
        for group in range(int(self.group_S.max(initial=-1)) + 1):
            members = self.group_S == group
            out_S[members] = rule(self.rewards_S[members])
        return out_S


class Advantage(Protocol):
    @property
    def min_rewards(self) -> int:
        """The fewest rewards that a group must have."""

    def __call__(self, batch: BatchRewards) -> np.ndarray:
        """→ A, float64[S], finite; 0 in groups of equal rewards where min_rewards > 1."""


@runtime_checkable
class Remembers(Protocol):
    """A rule that knows something of earlier batches: checkpoints hold it. Plain containers, numbers and text."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
