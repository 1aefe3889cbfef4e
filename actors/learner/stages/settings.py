"""How the `rl` stage is set and how far it is. Pure data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class RlSettings:
    """max_wall_s: seconds of this stage, None for no limit. wait_s: how long the dispatcher may hold one NextBatch."""

    max_steps: int
    max_wall_s: float | None
    mode: Literal["async", "sync"]
    wait_s: float

    def __post_init__(self) -> None:
        if self.max_steps < 0:
            raise ValueError(f"learner.max_steps must be >= 0, got {self.max_steps}; 0 only evaluates the start")
        if self.max_wall_s is not None and not 0 < self.max_wall_s < math.inf:
            raise ValueError(f"learner.max_wall_s must be > 0 or null, got {self.max_wall_s}")
        if self.mode not in ("async", "sync"):
            raise ValueError(f"learner.mode must be async or sync, got {self.mode!r}")
        if not self.wait_s > 0:
            raise ValueError(f"learner.wait_s must be > 0, got {self.wait_s}")

    def goes_on(self, progress: Progress) -> bool:
        """Whether the stage has anything left to do."""
        in_time = self.max_wall_s is None or progress.wall_s < self.max_wall_s
        return in_time and progress.step < self.max_steps


@dataclass
class Progress:
    """What a checkpoint must remember of the stage. `wall_s`: spent in it, earlier lives of the learner included.
    `first_mismatch`: see figures/alarms.py."""

    step: int = 0
    num_skipped: int = 0
    wall_s: float = 0.0
    first_mismatch: list[float] = field(default_factory=list)
