"""What is taken off a session's reward before advantages are computed, so that a group's members are compared with it.
The reward that is reported stays the grader's."""

from __future__ import annotations

from typing import Protocol

from headrace.actors.session import Trajectory


class RewardPenalty(Protocol):
    def __call__(self, trajectory: Trajectory) -> float:
        """>= 0, finite; in units of reward."""
