"""What an environment author implements. The session engine (turn loop, tokens, deadlines) is the actor's.

environment = factory()                                      # a class with `_partial_: true` in YAML; one a session
observation = await environment.reset(task)                  # the first messages, and the tools on offer
while not done:
    turn = … generate, parse …                               # by the actor
    outcome = await environment.step(turn)                   # tool outputs, or the end
await environment.close()                                    # always, after a failure or a cancellation too
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.actors.session import ChatMessage, Task, Tool


@dataclass(frozen=True, slots=True)
class Observation:
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """`messages`: what the model sees next (tool outputs, a user's answer); empty and done=True ends the session."""

    messages: tuple[ChatMessage, ...] = ()
    done: bool = True


class Environment(Protocol):
    """One instance a session. Every method may raise: the session fails with the reason, the actor goes on."""

    async def reset(self, task: Task) -> Observation: ...

    async def step(self, turn: ChatMessage) -> StepOutcome:
        """`turn` is the assistant's message with its parsed tool calls; a malformed call never reaches this method."""

    async def close(self) -> None: ...


EnvironmentFactory = Callable[[], Environment]


def check_environment(factory: object) -> None:
    """Raise ValueError where the factory is a class, perhaps with arguments, that is no Environment. What another
    callable will return cannot be known."""
    made = factory.func if isinstance(factory, functools.partial) else factory
    if not isinstance(made, type):
        return
    lacking = [name for name in ("reset", "step", "close") if not callable(getattr(made, name, None))]
    if lacking:
        raise ValueError(
            f"environment must have the methods reset, step and close; {made.__module__}.{made.__qualname__} lacks "
            f"{', '.join(lacking)}; see headrace/actors/environment/environment.py"
        )
