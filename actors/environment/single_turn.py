"""The simplest environment: one prompt, one answer."""

from __future__ import annotations

from headrace.actors.environment.environment import Observation, StepOutcome
from headrace.actors.session import ChatMessage, Task


class SingleTurn:
    """`system`: a system message before the task's own messages; None: none."""

    def __init__(self, *, system: str | None = None) -> None:
        self._system = system

    async def reset(self, task: Task) -> Observation:
        return Observation(with_system(self._system, task.prompt))

    async def step(self, turn: ChatMessage) -> StepOutcome:
        return StepOutcome()

    async def close(self) -> None:
        """Nothing is held."""


def with_system(system: str | None, prompt: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    return prompt if system is None else (ChatMessage("system", system), *prompt)
