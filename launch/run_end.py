"""The actor that stands for the launcher in a topology: it learns that the run is finished."""

from __future__ import annotations

from collections.abc import Callable

from headrace.actors.messages import Accepted, LearnerStepped, RunFinished
from headrace.transport import Actor, handles

NAME = "supervisor/0"


class RunEnd(Actor):
    """`on_finished` is called with the reason, on the event loop of the launcher's runtime."""

    def __init__(self, *, on_finished: Callable[[str], None]) -> None:
        self._on_finished = on_finished

    @handles(RunFinished)
    async def finished(self, message: RunFinished) -> Accepted:
        self._on_finished(message.reason)
        return Accepted()

    @handles(LearnerStepped)
    async def learner_stepped(self, message: LearnerStepped) -> None:
        """For who restarts processes; here the first loss is the end."""
