"""Whether a run still gets on although its processes are restarted: a failure that is always the same comes back
however often its process is started again, and however long each life lasts. Pure. Called by supervisor.py.

What counts as getting on is a training step further than any before it: one that is made again after a restart is none.
"""

from __future__ import annotations

from headrace.launch.supervisor_state import Escalate, Exit


class Stagnation:
    """`max_restarts`: of one process, with no further training step between the first of them and the last."""

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._furthest: dict[str, int] = {}
        self._ends: dict[str, list[Exit]] = {}

    def stepped(self, stage: str, step: int) -> None:
        """The learner has made optimizer step `step` (the first is 1) of `stage`."""
        if step > self._furthest.get(stage, 0):
            self._furthest[stage] = step
            self._ends.clear()

    def restarted(self, process: str, exit: Exit) -> Escalate | None:
        """It ended so and is started again; an escalation where that has been in vain."""
        ends = self._ends.setdefault(process, [])
        ends.append(exit)
        if len(ends) <= self._max_restarts:
            return None
        reason = (
            f"{process} ended {len(ends)} times without a training step in between, more than "
            f"launch.max_restarts_without_step={self._max_restarts} allows: starting it again does not help; "
            f"the first time: {ends[0]}, the last: {exit}"
        )
        return Escalate(process, reason, process, ends[0].last_lines)
