"""Fixtures of the environment tests: a scripted generator, sessions. Tokenizers, templates: one folder up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from headrace.actors.environment.counters import SessionCounters
from headrace.actors.environment.phases import Timeouts
from headrace.actors.environment.session import Session, SessionRules
from headrace.actors.environment.single_turn import SingleTurn
from headrace.actors.environment.tool_calls import make_parser
from headrace.actors.messages import Completion, Generate
from headrace.actors.rendering import ChatRenderer, Renderer
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task
from headrace.transport import LoopClock


def completion(
    token_ids: Sequence[int], finish_reason: str = "stop", *, version: int = 1, logprob: float = -0.5
) -> Completion:
    return Completion(
        np.asarray(token_ids, dtype=np.int32),
        np.full(len(token_ids), logprob, dtype=np.float32),
        np.full(len(token_ids), version, dtype=np.int32),
        finish_reason,  # type: ignore[arg-type]
    )


@pytest.fixture
def make_completion() -> Callable[..., Completion]:
    return completion


@dataclass
class ScriptedEngine:
    """F2: replays completions (or raises exceptions) in order, and keeps the requests that it got."""

    script: list[Completion | Exception]
    requests: list[Generate] = field(default_factory=list)

    async def __call__(self, request: Generate, timeout_s: float) -> Completion:
        self.requests.append(request)
        reply = self.script[len(self.requests) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture
def make_engine() -> type[ScriptedEngine]:
    return ScriptedEngine


def session_spec(
    session_id: str = "s0", *, prompt: str = "2+2?", max_tokens: int = 64, member: int = 0, seed: int | None = None
) -> SessionSpec:
    task = Task("t0", "test", (ChatMessage("user", prompt),), entry={"table": {"color": "blue"}})
    return SessionSpec(session_id, "g0", member, "train", task, Sampling(max_tokens=max_tokens, seed=seed))


@pytest.fixture
def make_spec() -> Callable[..., SessionSpec]:
    return session_spec


@pytest.fixture
def make_session(chat: Callable[[str], ChatRenderer]) -> Callable[..., Session]:
    """A session on a virtual clock; must be called inside the loop."""

    def make(
        ask: ScriptedEngine,
        *,
        spec: SessionSpec | None = None,
        environment: Callable[[], object] = SingleTurn,
        renderer: Renderer | None = None,
        tool_calls: str = "none",
        max_turns: int = 8,
        context_tokens: int = 4096,
        timeouts: Timeouts | None = None,
        max_generation_tries: int = 3,
    ) -> Session:
        rules = SessionRules(
            renderer=renderer or chat("append_only"),
            parser=make_parser(tool_calls),
            timeouts=timeouts or Timeouts(),
            context_tokens=context_tokens,
            max_turns=max_turns,
            max_generation_tries=max_generation_tries,
        )
        return Session(spec or session_spec(), environment, rules, ask, LoopClock(), SessionCounters())  # type: ignore[arg-type]

    return make
