"""What an advantage rule is given and gives back. Rules are pure NumPy and see one group at a time.

Missing rewards never reach a rule: `headrace.actors.learner.intake` leaves them out, gives their members advantage 0
and takes their tokens out of the loss, and passes over groups with fewer than `min_rewards` rewards.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Advantage(Protocol):
    @property
    def min_rewards(self) -> int:
        """The fewest rewards that this rule can work with."""

    def __call__(self, rewards_G: np.ndarray) -> np.ndarray:
        """float64[G], finite, at least `min_rewards` of them → A, float64[G], finite, 0 where all rewards are equal."""
