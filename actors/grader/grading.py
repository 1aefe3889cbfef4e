"""What a grader author implements: a score for one finished session. The actor around it owns deadlines, isolation and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace.actors.session import Trajectory


@dataclass(frozen=True, slots=True)
class Grade:
    """`reward` None means "no reward" (an unscorable task, an infrastructure failure); it is never turned into 0."""

    reward: float | None
    components: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


class Grading(Protocol):
    isolation: str
    """"inline" for cheap pure functions; "process" for anything that may be slow, hang or eat memory: it runs in a
    killable child process with a hard timeout."""

    def grade(self, trajectory: Trajectory) -> Grade:
        """Score a session from its messages (the last assistant message is the answer). Synchronous; may raise."""
