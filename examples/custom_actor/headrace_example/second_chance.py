"""An environment: an answer of the wrong form is asked for once more."""

from __future__ import annotations

import re

from headrace.actors.environment import Observation, StepOutcome
from headrace.actors.session import ChatMessage, Task


class SecondChance:
    """One instance a session. `pattern`: what an answer must match as a whole; it looks at the form, never at the gold
    answer. `retry`: what the model is told after an answer that does not. Needs `max_turns: 2` of its actor."""

    def __init__(self, *, pattern: str, retry: str) -> None:
        self._pattern = re.compile(pattern)
        self._retry = retry
        self._asked_again = False

    async def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    async def step(self, turn: ChatMessage) -> StepOutcome:
        if self._asked_again or self._pattern.fullmatch(turn.content.strip()):
            return StepOutcome()
        self._asked_again = True
        return StepOutcome((ChatMessage("user", self._retry),), done=False)

    async def close(self) -> None:
        """Nothing is held."""
