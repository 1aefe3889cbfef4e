"""Finished sessions as the environment hands them to a grader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task, Trajectory, TrajectoryBuilder

MakeSession = Callable[..., Trajectory]


@pytest.fixture(scope="session")
def make_session() -> MakeSession:
    """make_session(answer, gold, entry=…, session_id=…): one prompt, one assistant message."""

    def make(
        answer: str,
        gold: str | None = None,
        *,
        entry: dict[str, object] | None = None,
        session_id: str = "s0",
        logprobs: tuple[float, ...] = (-0.5, -0.25),
    ) -> Trajectory:
        prompt = ChatMessage("user", "a question")
        spec = SessionSpec(
            session_id, "g0", 0, "train", Task("t0", "test", (prompt,), answer=gold, entry=entry or {}), Sampling()
        )
        builder = TrajectoryBuilder(spec)
        builder.add_context([1, 2, 3])
        count = len(logprobs)
        builder.add_generation(np.arange(count), np.array(logprobs, np.float32), np.full(count, 7), "stop")
        messages = (prompt, ChatMessage("assistant", answer))
        return builder.build(messages=messages, ending="done", timings_s={"run": 0.5}, notes={})

    return make


@pytest.fixture
def hostile_gradings(monkeypatch: pytest.MonkeyPatch) -> object:
    """The module of gradings that hang, crash and leave processes; importable in a grading child too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "hostile"))
    import hostile_gradings

    yield hostile_gradings
    sys.modules.pop("hostile_gradings", None)
