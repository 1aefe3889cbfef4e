"""The grader actor between a scripted environment and a scripted dispatcher, in one process under virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.grader.actor import Grader
from headrace.actors.grader.coin_toss import CoinToss
from headrace.actors.grader.exact_match import ExactMatchGrading
from headrace.actors.grader.grading import Grade
from headrace.actors.messages import (
    Accepted,
    GradeSession,
    Metrics,
    SessionFailed,
    SessionGraded,
    SessionsHeld,
    WhichSessions,
)
from headrace.actors.session import Trajectory
from headrace.transport import Actor, Context, DeadlineExceeded, LoopbackNetwork, Runtime, handles, run_virtual

MakeSession = Callable[..., Trajectory]


class Dispatcher(Actor):
    """Accepts, after failing as often as it is told."""

    def __init__(self, *, silent: int = 0, raising: bool = False, delay_s: float = 0.0) -> None:
        self.graded: list[Trajectory] = []
        self.failed: list[SessionFailed] = []
        self.silent, self.raising, self.delay_s = silent, raising, delay_s

    @handles(SessionGraded, concurrent=True)
    async def session_graded(self, message: SessionGraded) -> Accepted:
        if self.raising:
            raise KeyError("no such session")
        if self.silent > 0:
            self.silent -= 1
            await self.context.clock.sleep(1e6)
        await self.context.clock.sleep(self.delay_s)
        self.graded.append(message.trajectory)
        return Accepted()

    @handles(SessionFailed)
    async def session_failed(self, message: SessionFailed) -> Accepted:
        self.failed.append(message)
        return Accepted()


class Monitor(Actor):
    def __init__(self) -> None:
        self.metrics: list[Metrics] = []

    @handles(Metrics)
    async def take(self, message: Metrics) -> None:
        self.metrics.append(message)


class Environment(Actor):
    """Only asks."""


class Broken:
    isolation = "inline"

    def grade(self, trajectory: Trajectory) -> Grade:
        if trajectory.spec.session_id == "nan":
            return Grade(float("nan"))
        raise RuntimeError("a bug in a grading")


def play(
    scene: Callable[[Context, Grader, Dispatcher], Any],
    trajectories_dir: Path,
    *,
    grading: Any = None,
    dispatcher: Dispatcher | None = None,
    monitor: Monitor | None = None,
    **settings: Any,
) -> None:
    """Run `scene(environment's context, grader, dispatcher)` and stop the runtime."""

    async def main() -> None:
        runtime = Runtime(LoopbackNetwork(), encode_local=True)
        await runtime.start()
        receiver = dispatcher or Dispatcher()
        await runtime.add(receiver, "dispatcher/0")
        if monitor is not None:
            await runtime.add(monitor, "monitor/0")
        grader = Grader(grading=grading or ExactMatchGrading(), trajectories_dir=str(trajectories_dir), **settings)
        await runtime.add(grader, "grader/0")
        environment = await runtime.add(Environment(), "environment/0")
        await scene(environment, grader, receiver)
        await runtime.stop()

    run_virtual(main())


async def until(context: Context, condition: Callable[[], bool], timeout_s: float = 200.0) -> None:
    deadline = context.clock.time() + timeout_s
    while not condition():
        assert context.clock.time() < deadline, "it did not happen in time"
        await context.clock.sleep(0.05)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "grader-0.jsonl").read_text().splitlines()]


def test_sessions_are_graded_recorded_and_handed_over(make_session: MakeSession, tmp_path: Path) -> None:
    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        for number in range(5):
            session = make_session("5" if number % 2 else "6", "5", session_id=f"s{number}")
            assert isinstance(await context.ask("grader/0", GradeSession(session), timeout_s=5), Accepted)
        await until(context, lambda: len(dispatcher.graded) == 5)
        rewards = {session.spec.session_id: session.reward for session in dispatcher.graded}
        assert rewards == {"s0": 0.0, "s1": 1.0, "s2": 0.0, "s3": 1.0, "s4": 0.0}
        assert dispatcher.graded[0].rewards == {"correct": 0.0}
        assert "grade" in dispatcher.graded[0].timings_s

    play(scene, tmp_path)
    assert sorted(record["session_id"] for record in records(tmp_path)) == ["s0", "s1", "s2", "s3", "s4"]
    assert [record["reward"] for record in records(tmp_path)].count(1.0) == 2


def test_who_hears_of_a_reward_finds_it_on_disk(make_session: MakeSession, tmp_path: Path) -> None:
    """A grader that is killed after that must not leave trained sessions without a record."""

    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        await context.ask("grader/0", GradeSession(make_session("5", "5")), timeout_s=5)
        await until(context, lambda: dispatcher.silent == 0)
        assert [record["reward"] for record in records(tmp_path)] == [1.0]
        assert dispatcher.graded == []

    play(scene, tmp_path, dispatcher=Dispatcher(silent=1), delivery_patience_s=1.0)


def test_a_repeated_ask_is_graded_once(make_session: MakeSession, tmp_path: Path) -> None:
    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        for _ in range(3):
            await context.ask("grader/0", GradeSession(make_session("5", "5")), timeout_s=5)
        await until(context, lambda: bool(dispatcher.graded))
        await context.clock.sleep(5)
        assert len(dispatcher.graded) == 1
        assert grader.counts["duplicates"] == 2

    play(scene, tmp_path)


def test_a_silent_dispatcher_is_asked_again(make_session: MakeSession, tmp_path: Path) -> None:
    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        await context.ask("grader/0", GradeSession(make_session("5", "5")), timeout_s=5)
        await until(context, lambda: bool(dispatcher.graded))
        assert grader.counts["delivered"] == 1

    play(scene, tmp_path, dispatcher=Dispatcher(silent=3), delivery_timeout_s=10.0)
    assert len(records(tmp_path)) == 1


def test_a_session_waits_for_the_dispatchers_successor(make_session: MakeSession, tmp_path: Path) -> None:
    """Its process dies while the grader has a session; the next one asks which it has, and gets it."""

    async def main() -> None:
        network = LoopbackNetwork()
        runtime = Runtime(network)
        await runtime.start()
        await runtime.add(Grader(grading=ExactMatchGrading(), trajectories_dir=str(tmp_path)), "grader/0")
        first = Runtime(network, directory=runtime.address)
        await first.start()
        await first.add(Dispatcher(silent=9), "dispatcher/0")
        accepted = await runtime.context.ask("grader/0", GradeSession(make_session("5", "5")), timeout_s=5)
        assert accepted.incarnation == runtime.incarnation
        await runtime.clock.sleep(1)
        await first.stop()
        runtime.directory.process_down(first.incarnation, "killed")
        await runtime.clock.sleep(20)
        held: SessionsHeld = await runtime.context.ask("grader/0", WhichSessions(), timeout_s=5)
        assert held == SessionsHeld((("s0", 0),), runtime.incarnation)
        second = Runtime(network, directory=runtime.address)
        await second.start()
        successor = Dispatcher()
        await second.add(successor, "dispatcher/0")
        await until(runtime.context, lambda: bool(successor.graded))
        held = await runtime.context.ask("grader/0", WhichSessions(), timeout_s=5)
        assert held.sessions == ()
        await second.stop()
        await runtime.stop()

    run_virtual(main())


def test_patience_with_a_dispatcher_ends(make_session: MakeSession, tmp_path: Path) -> None:
    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        await context.ask("grader/0", GradeSession(make_session("5", "5")), timeout_s=5)
        await context.clock.sleep(100)
        assert grader.counts["undelivered"] == 1
        assert (await context.ask("grader/0", WhichSessions(), timeout_s=5)).sessions == ()

    play(scene, tmp_path, dispatcher=Dispatcher(silent=9), delivery_timeout_s=10.0, delivery_patience_s=60.0)


def test_a_full_grader_still_says_what_it_has(make_session: MakeSession, tmp_path: Path) -> None:
    """It has what it acknowledged; what waits for a place is the environment's, and is forgotten when that gives up."""

    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        async def one(number: int) -> bool:
            try:
                session = make_session("5", "5", session_id=f"s{number}")
                await context.ask("grader/0", GradeSession(session), timeout_s=10)
            except DeadlineExceeded:
                return False
            return True

        asks = [asyncio.ensure_future(one(number)) for number in range(6)]
        await context.clock.sleep(1)
        held = (await context.ask("grader/0", WhichSessions(), timeout_s=5)).sessions
        taken = await asyncio.gather(*asks)
        assert {session_id for session_id, _ in held} == {f"s{number}" for number, has in enumerate(taken) if has}
        assert sum(taken) == 4
        dispatcher.silent = 0
        await context.clock.sleep(60)
        assert await one(5), "it was not remembered as seen"
        await until(context, lambda: len(dispatcher.graded) == 5)

    play(scene, tmp_path, dispatcher=Dispatcher(silent=2), concurrency=2, delivery_timeout_s=20.0)


def test_what_the_dispatcher_can_never_accept_is_reported_as_failed(make_session: MakeSession, tmp_path: Path) -> None:
    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        await context.ask("grader/0", GradeSession(make_session("5", "5")), timeout_s=5)
        await until(context, lambda: bool(dispatcher.failed))
        assert dispatcher.failed[0].session_id == "s0"
        assert dispatcher.failed[0].reason == "failed"
        assert "no such session" in dispatcher.failed[0].detail

    play(scene, tmp_path, dispatcher=Dispatcher(raising=True))


def test_a_broken_grading_gives_no_reward_and_the_actor_lives(make_session: MakeSession, tmp_path: Path) -> None:
    """cases A11 and B41 in kind: no reward is None, never 0."""

    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        for name in ("a", "nan", "b"):
            await context.ask("grader/0", GradeSession(make_session("5", "5", session_id=name)), timeout_s=5)
        await until(context, lambda: len(dispatcher.graded) == 3)
        assert [session.reward for session in dispatcher.graded] == [None, None, None]
        notes = {session.spec.session_id: session.notes for session in dispatcher.graded}
        assert "a bug in a grading" in notes["a"]["grading_detail"]
        assert (notes["nan"]["grading"], notes["nan"]["grading_detail"]) == ("not_finite", "the grading returned nan")
        assert (grader.counts["missing"], grader.counts["raised"]) == (3, 2)

    play(scene, tmp_path, grading=Broken())


def test_failures_are_told_once_a_kind_with_a_traceback_and_then_summed_up(
    make_session: MakeSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        for number in range(100):
            await context.ask("grader/0", GradeSession(make_session("5", session_id=f"s{number}")), timeout_s=5)
            await context.clock.sleep(0.5)
        await until(context, lambda: len(dispatcher.graded) == 100)

    with caplog.at_level("WARNING"):
        play(scene, tmp_path, grading=Broken())
    first, *summaries = [r.getMessage() for r in caplog.records if r.name.startswith("headrace.actors.grader")]
    assert "raised RuntimeError" in first
    assert 'raise RuntimeError("a bug in a grading")' in first
    assert len(summaries) == 2, "one after 30 s, one at the end"
    assert "raised RuntimeError" in summaries[0]
    assert "100%" in summaries[0]


class WrongType:
    isolation = "inline"

    def __init__(self, returned: object) -> None:
        self.returned = returned

    def grade(self, trajectory: Trajectory) -> Any:
        return self.returned


@pytest.mark.parametrize("returned", [0.5, None, "1.0", Grade("1.0"), Grade(1.0, {"a": "high"})])  # type: ignore[arg-type]
def test_a_grading_that_returns_no_grade_gives_no_reward_and_the_actor_lives(
    returned: object, make_session: MakeSession, tmp_path: Path
) -> None:
    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        await context.ask("grader/0", GradeSession(make_session("5")), timeout_s=5)
        await until(context, lambda: bool(dispatcher.graded))
        assert dispatcher.graded[0].reward is None
        assert dispatcher.graded[0].notes["grading"] == "raised"

    play(scene, tmp_path, grading=WrongType(returned))


def test_unscorable_sessions_are_counted(make_session: MakeSession, tmp_path: Path) -> None:
    """cases A11: the counter rises by one; the reward stays missing on its way to the dispatcher."""
    monitor = Monitor()

    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        await context.ask("grader/0", GradeSession(make_session("5", None)), timeout_s=5)
        await context.clock.sleep(12)
        assert dispatcher.graded[0].reward is None
        assert monitor.metrics[-1].values["missing"] == 1.0

    play(scene, tmp_path, monitor=monitor)
    assert records(tmp_path)[0]["reward"] is None


def test_sessions_in_hand_are_bounded_and_none_is_lost(make_session: MakeSession, tmp_path: Path) -> None:
    """A slow dispatcher holds back the environments; every session arrives once."""
    highest = 0

    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        nonlocal highest

        async def one(number: int) -> None:
            nonlocal highest
            session = make_session("5", "5", session_id=f"s{number}")
            await context.ask("grader/0", GradeSession(session), timeout_s=500)
            highest = max(highest, number - len(dispatcher.graded))

        await asyncio.gather(*(one(number) for number in range(60)))
        await until(context, lambda: len(dispatcher.graded) == 60)
        assert len({session.spec.session_id for session in dispatcher.graded}) == 60
        assert highest <= 3 * 4 + 1, "in work, in the queue, and the one that the handler holds"

    play(scene, tmp_path, dispatcher=Dispatcher(delay_s=1.0), concurrency=4)


def test_stopping_delivers_what_is_in_hand(make_session: MakeSession, tmp_path: Path) -> None:
    received = Dispatcher(delay_s=0.5)

    async def scene(context: Context, grader: Grader, dispatcher: Dispatcher) -> None:
        for number in range(3):
            session = make_session("5", "5", session_id=f"s{number}")
            await context.ask("grader/0", GradeSession(session), timeout_s=5)
        await grader.on_stop()
        assert len(dispatcher.graded) == 3

    play(scene, tmp_path, dispatcher=received, grading=CoinToss())
    assert len(records(tmp_path)) == 3


@pytest.mark.parametrize(
    ("setting", "value"),
    [("concurrency", 0), ("workers", 0), ("timeout_s", 0), ("metrics_every_s", 0), ("delivery_patience_s", 0)],
)
def test_settings_are_checked(setting: str, value: float) -> None:
    settings: dict[str, Any] = {"grading": CoinToss(), "trajectories_dir": "unused", setting: value}
    with pytest.raises(ValueError, match=setting):
        Grader(**settings)


def test_a_grading_without_the_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match=r"grade\(trajectory\)"):
        Grader(grading=object(), trajectories_dir="unused")  # type: ignore[arg-type]
