"""The grader actor with killable children, on a real event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.grader.actor import Grader
from headrace.actors.messages import Accepted, GradeSession, SessionGraded
from headrace.actors.session import Trajectory
from headrace.transport import Actor, LoopbackNetwork, Runtime, handles

MakeSession = Callable[..., Trajectory]


class Dispatcher(Actor):
    def __init__(self) -> None:
        self.graded: list[Trajectory] = []
        self.all_there = asyncio.Event()

    @handles(SessionGraded)
    async def session_graded(self, message: SessionGraded) -> Accepted:
        self.graded.append(message.trajectory)
        if len(self.graded) == 12:
            self.all_there.set()
        return Accepted()


class Environment(Actor):
    """Only asks."""


def test_hostile_sessions_do_not_hold_up_others(
    make_session: MakeSession, hostile_gradings: Any, tmp_path: Path
) -> None:
    """cases A38, A40: asks are accepted at once, a spinning one costs only its own limit."""

    async def main() -> None:
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        dispatcher = Dispatcher()
        await runtime.add(dispatcher, "dispatcher/0")
        grader = Grader(grading=hostile_gradings.Obedient(), trajectories_dir=str(tmp_path), workers=2, timeout_s=0.5)
        await runtime.add(grader, "grader/0")
        environment = await runtime.add(Environment(), "environment/0")
        for number, command in enumerate(["spin 30", *["fine"] * 9, "raise x", "crash"]):
            session = make_session(command, session_id=f"s{number}")
            await environment.ask("grader/0", GradeSession(session), timeout_s=5)
        await asyncio.wait_for(dispatcher.all_there.wait(), 20)
        rewards = {session.spec.session_id: session.reward for session in dispatcher.graded}
        assert [rewards[f"s{n}"] for n in (0, 10, 11)] == [0.0, None, 0.0]
        assert all(rewards[f"s{n}"] == 1.0 for n in range(1, 10))
        assert (grader.counts["killed"], grader.counts["raised"]) == (2, 1)
        await runtime.stop()

    asyncio.run(main())
    assert (tmp_path / "grader-0.jsonl").read_text().count("\n") == 12


def test_stopping_amid_gradings_that_hang_leaves_one_line_a_kind(
    make_session: MakeSession, hostile_gradings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> Grader:
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        dispatcher = Dispatcher()
        await runtime.add(dispatcher, "dispatcher/0")
        grader = Grader(grading=hostile_gradings.Forgiving(), trajectories_dir=str(tmp_path), timeout_s=60.0)
        await runtime.add(grader, "grader/0")
        environment = await runtime.add(Environment(), "environment/0")
        for number in range(20):
            session = make_session("spin 600", session_id=f"s{number}")
            await environment.ask("grader/0", GradeSession(session), timeout_s=5)
        await runtime.stop()
        assert not dispatcher.graded
        return grader

    grader = asyncio.run(main())
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("headrace.actors.grader")]
    assert lines == ["stopping with 20 sessions in hand; nobody waits for their rewards"]
    assert (tmp_path / "grader-0.jsonl").read_text() == ""
    assert grader.counts["graded"] == 0
