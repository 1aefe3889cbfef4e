"""The dispatcher actor among scripted peers under virtual time: whole runs, the lag bound, lost environments,
evaluations."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest

from headrace.actors.dispatcher.actor import Dispatcher
from headrace.actors.dispatcher.evaluation import EvaluationSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.messages import (
    Accepted,
    NextBatch,
    RunSessions,
    SessionFailed,
    SessionsMoved,
    SyncEvaluators,
    VersionServed,
)
from headrace.transport import Actor, LoopbackNetwork, Runtime, handles, run_virtual


class _Run:
    """A topology in one process. `extra`: a second runtime that hosts environment/1 and can be stopped, as a process
    that dies."""

    def __init__(self, peers: ModuleType, world: Any, dispatcher: Dispatcher, *, slots: int, max_steps: int) -> None:
        self.peers, self.world, self.dispatcher = peers, world, dispatcher
        self.slots, self.max_steps = slots, max_steps

    async def start(self, *, extra: bool = False) -> None:
        network = LoopbackNetwork()
        self.runtime = Runtime(network)
        await self.runtime.start()
        peers, world, add = self.peers, self.world, self.runtime.add
        await add(peers.Collector(world=world), "supervisor")
        await add(peers.Collector(world=world), "monitor")
        await add(peers.ScriptedParameterServer(world=world), "parameter_server")
        await add(peers.ScriptedGrader(world=world), "grader")
        await add(self.dispatcher, "dispatcher")
        await add(peers.ScriptedEnvironment(world=world, slots=self.slots), "environment/0")
        if extra:
            self.extra = Runtime(network, directory=self.runtime.address)
            await self.extra.start()
            await self.extra.add(peers.ScriptedGrader(world=world), "grader/1")
            await self.extra.add(peers.ScriptedEnvironment(world=world, slots=self.slots), "environment/1")
        await add(peers.ScriptedLearner(world=world, max_steps=self.max_steps), "learner")

    async def finish(self, timeout_s: float = 1e6) -> None:
        done = asyncio.ensure_future(self.world.finished.wait())
        await asyncio.wait({done, self.runtime.failed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.runtime.failed.done():
            await self.runtime.failed
        assert done.done(), "the run did not finish"
        self.world.environments_at_end = self.dispatcher.placement.environments
        await self.runtime.stop()


def check_ledger(dispatcher: Dispatcher, world: Any, path: Path) -> list[dict[str, Any]]:
    """Everything that was issued is on disk once, with an end, and agrees with what the learner saw."""
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        lines = [dict(row) for row in database.execute("select * from sessions")]
        assert list(database.execute("select session_id from trajectories")) == [], "kept beyond the session's end"
    counts = dispatcher.training.ledger.snapshot()
    assert counts["issued"] == counts["trained"] + counts["dropped"] == len(lines)
    assert len({line["session_id"] for line in lines}) == len(lines)
    trained = {line["session_id"]: line for line in lines if line["state"] == "trained"}
    assert len(trained) == len(world.trained), "a session was trained twice, or trained and not booked"
    assert all(trained[s]["step"] == step and trained[s]["lag"] == lag for step, s, lag in world.trained)
    assert Counter(line["reason"] for line in lines if line["reason"]) == {
        name.removeprefix("dropped_"): count for name, count in counts.items() if name.startswith("dropped_") and count
    }
    return lines


@pytest.mark.parametrize(
    ("max_lag", "consumption", "max_steps"),
    [(0, "oldest_ready", 60), (1, "fifo", 60), (4, "newest", 60), (4, "oldest_ready", 300)],
)
def test_heavy_tails_never_exceed_the_hard_limit(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path, max_lag: int, consumption: Any, max_steps: int
) -> None:
    """cases F97, F98 over a whole run: lognormal sessions (sigma 1.5), sessions age in flight and in the queue."""
    world_of = peers.World

    async def main() -> tuple[Any, Dispatcher]:
        world = world_of(
            session_s=lambda rng: rng.lognormvariate(0.0, 1.5),
            reward=lambda s: float(crc32(s.session_id.encode()) % 3 == 0),
        )
        dispatcher = Dispatcher(
            tasks=tasks, group_size=4, batch_sessions=16, max_lag_versions=max_lag, consumption=consumption,
            ledger_path=str(tmp_path / "ledger.sqlite"),
        )  # fmt: skip
        run = _Run(peers, world, dispatcher, slots=48, max_steps=max_steps)
        await run.start()
        await run.finish()
        return world, dispatcher

    world, dispatcher = run_virtual(main())
    check_ledger(dispatcher, world, tmp_path / "ledger.sqlite")
    assert world.trained[-1][0] == max_steps
    assert set(world.batch_sizes) == {16}
    lags = [lag for _, _, lag in world.trained]
    assert min(lags) >= 0
    assert max(lags) <= max(1, 3 * max_lag)
    assert (max(lags) >= 1) == (max_lag > 0), "with room for lag, this run should have some"


def test_sync_mode_has_lag_zero_and_waits_for_each_version(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path
) -> None:
    async def main() -> tuple[Any, Dispatcher]:
        world = peers.World(fails=lambda spec: spec.member == 0 and int(spec.group_id[1:]) % 3 == 0)
        dispatcher = Dispatcher(
            tasks=tasks, group_size=4, batch_sessions=8, max_lag_versions=4, mode="sync", max_attempts=2,
            ledger_path=str(tmp_path / "ledger.sqlite"),
        )  # fmt: skip
        run = _Run(peers, world, dispatcher, slots=64, max_steps=100)
        await run.start()
        await run.finish()
        return world, dispatcher

    world, dispatcher = run_virtual(main())
    lines = check_ledger(dispatcher, world, tmp_path / "ledger.sqlite")
    assert {lag for _, _, lag in world.trained} == {0}
    assert {line["reason"] for line in lines} <= {None, "failed", "cancelled"}
    assert set(world.batch_sizes) <= {6, 7, 8}


def test_a_slow_learner_holds_the_producers_back_and_nothing_vanishes(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path
) -> None:
    """cases F100: areal-project/AReaL#1481: what is ready is bounded by admission, never evicted in silence."""

    async def main() -> tuple[Any, Dispatcher]:
        world = peers.World(train_s=50.0)
        dispatcher = Dispatcher(
            tasks=tasks, group_size=4, batch_sessions=8, max_lag_versions=2, ledger_path=str(tmp_path / "ledger.sqlite")
        )
        run = _Run(peers, world, dispatcher, slots=512, max_steps=10)
        await run.start()
        await run.finish()
        return world, dispatcher

    world, dispatcher = run_virtual(main())
    lines = check_ledger(dispatcher, world, tmp_path / "ledger.sqlite")
    ready = [m.values["ready"] for m in world.metrics if m.stream == "dispatcher"]
    assert 8 < max(ready) <= 3 * 8
    assert len(lines) <= (10 + 3) * 8


@pytest.mark.parametrize("what", ["environment", "grader"])
def test_sessions_of_a_lost_process_run_again_elsewhere(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path, what: str
) -> None:
    async def main() -> tuple[Any, Dispatcher]:
        world = peers.World(grade_s=5.0 if what == "grader" else 0.05)
        dispatcher = Dispatcher(
            tasks=tasks,
            group_size=4,
            batch_sessions=16,
            max_lag_versions=2,
            ledger_path=str(tmp_path / "ledger.sqlite"),
        )
        run = _Run(peers, world, dispatcher, slots=16, max_steps=30)
        await run.start(extra=True)
        await asyncio.sleep(12.0)
        await run.extra.stop(grace_s=0.0)
        await run.finish()
        return world, dispatcher

    world, dispatcher = run_virtual(main())
    lines = check_ledger(dispatcher, world, tmp_path / "ledger.sqlite")
    assert dispatcher.training.counters["attempts_lost"] > 0
    assert {line["reason"] for line in lines} <= {None, "cancelled", "over_age"}
    assert max(line["attempt"] for line in lines) == 1
    assert world.environments_at_end == ("environment/0",)


def test_the_rest_is_cancelled_at_the_end_also_where_it_runs(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path
) -> None:
    async def main() -> tuple[Any, Dispatcher]:
        world = peers.World(session_s=lambda rng: 1.0 if rng.random() < 0.7 else 500.0)
        dispatcher = Dispatcher(
            tasks=tasks, group_size=2, batch_sessions=4, max_lag_versions=8, ledger_path=str(tmp_path / "ledger.sqlite")
        )
        run = _Run(peers, world, dispatcher, slots=64, max_steps=2)
        await run.start()
        await run.finish()
        return world, dispatcher

    world, dispatcher = run_virtual(main())
    lines = check_ledger(dispatcher, world, tmp_path / "ledger.sqlite")
    cancelled = {line["session_id"] for line in lines if line["reason"] == "cancelled"}
    assert cancelled
    assert set(world.cancelled) <= cancelled
    assert len(world.cancelled) > 0
    assert dispatcher.placement.num_seated == 0


def test_evaluations_at_the_start_on_the_way_and_at_the_end(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path
) -> None:
    """They hold one version each, training goes on meanwhile, a trigger that falls due during one waits, the last is
    of the last version."""

    async def main() -> tuple[Any, Dispatcher]:
        world = peers.World(reward=lambda s: float(s.member % 2 == 0))
        evaluation = EvaluationSettings(num_prompts=6, samples=4, every_steps=10, max_in_flight=8)
        dispatcher = Dispatcher(
            tasks=tasks, group_size=4, batch_sessions=8, max_lag_versions=2, evaluation=evaluation,
            ledger_path=str(tmp_path / "ledger.sqlite"),
        )  # fmt: skip
        run = _Run(peers, world, dispatcher, slots=32, max_steps=35)
        await run.start()
        await run.finish()
        return world, dispatcher

    world, dispatcher = run_virtual(main())
    check_ledger(dispatcher, world, tmp_path / "ledger.sqlite")
    evals = [m for m in world.metrics if m.stream == "eval"]
    steps = [int(m.values["step"]) for m in evals]
    assert steps[0] == 0
    assert steps[-1] == 35
    assert len(steps) == 5
    assert all(0 <= step - due <= 2 for step, due in zip(steps[1:4], (10, 20, 30), strict=True))
    last = evals[-1]
    assert (last.step_name, last.step) == ("version", float(world.version))
    assert last.values["reward"] == 0.5
    assert last.values["reward_n"] == 24
    assert last.values["greedy"] == 1.0
    assert last.values["greedy_n"] == 6
    assert last.values["pass_at_4"] == 1.0
    assert last.values["pass_at_1"] == 0.5
    assert last.values["off_version"] == 0
    assert last.values["missing"] == 0


def test_an_evaluation_with_as_many_sessions_as_slots_does_not_hold_training_up(
    peers: ModuleType, tasks: TaskSource
) -> None:
    """While both have sessions to run, each has half of the slots."""
    graded: list[str] = []

    def reward(spec: Any) -> float:
        graded.append(spec.purpose)
        return float(spec.member % 2)

    async def main() -> None:
        world = peers.World(reward=reward, session_s=lambda rng: 1.0)
        evaluation = EvaluationSettings(num_prompts=40, samples=1, greedy=False, every_steps=1000, max_in_flight=64)
        dispatcher = Dispatcher(
            tasks=tasks, group_size=4, batch_sessions=8, max_lag_versions=4, evaluation=evaluation
        )  # fmt: skip
        run = _Run(peers, world, dispatcher, slots=8, max_steps=6)
        await run.start()
        await run.finish()

    run_virtual(main())
    assert graded[8:40].count("eval") == graded[8:40].count("train") == 16
    assert graded.count("eval") == 80, "both evaluations are whole"


def test_a_run_that_only_evaluates_waits_for_its_evaluators_and_ends(peers: ModuleType, tasks: TaskSource) -> None:
    """No learner, no version: nothing is trained, what evaluators begin with is evaluated once, and the run is over."""

    class Evaluators(Actor):
        pass

    async def main() -> tuple[Any, Dispatcher, float]:
        world = peers.World(session_s=lambda rng: 1.0)
        evaluation = EvaluationSettings(num_prompts=3, samples=2, greedy=False, max_in_flight=64)
        dispatcher = Dispatcher(
            tasks=tasks, group_size=2, batch_sessions=4, evaluation=evaluation, only_evaluates=True, num_evaluators=2
        )
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        for actor, name in (
            (peers.Collector(world=world), "supervisor"),
            (peers.Collector(world=world), "monitor"),
            (peers.ScriptedParameterServer(world=world), "parameter_server"),
            (peers.ScriptedGrader(world=world), "grader"),
            (dispatcher, "dispatcher"),
            (peers.ScriptedEnvironment(world=world, slots=4), "environment/0"),
            (Evaluators(), "evaluator/0"),
        ):
            await runtime.add(actor, name)
        clock = asyncio.get_running_loop()
        await asyncio.sleep(100.0)
        assert not [m for m in world.metrics if m.stream == "eval"], "one of its two evaluators is not there yet"
        began_s = clock.time()
        await runtime.add(Evaluators(), "evaluator/1")
        await asyncio.wait_for(world.finished.wait(), 1000.0)
        ended_s = clock.time() - began_s
        await runtime.stop()
        return world, dispatcher, ended_s

    world, dispatcher, ended_s = run_virtual(main())
    (evaluation,) = [m for m in world.metrics if m.stream == "eval"]
    assert (evaluation.step, evaluation.values["reward"], evaluation.values["missing"]) == (0.0, 0.5, 0.0)
    assert dispatcher.training.ledger.snapshot()["issued"] == 0
    assert ended_s < 20.0
    told = [m.values for m in world.metrics if m.stream == "dispatcher" and m.values["evaluation/sessions"]]
    assert told
    assert all(values["evaluation/sessions"] == 6 for values in told)


def test_a_run_that_only_evaluates_needs_prompts(tasks: TaskSource) -> None:
    for evaluation in (None, EvaluationSettings(num_prompts=0), EvaluationSettings(enabled=False)):
        with pytest.raises(ValueError, match=r"num_prompts must be >= 1, got none; a run that only"):
            Dispatcher(tasks=tasks, group_size=2, batch_sessions=4, evaluation=evaluation, only_evaluates=True)


def test_training_never_waits_for_an_evaluation(peers: ModuleType, tasks: TaskSource) -> None:
    """Neither for evaluators that take minutes to get their version, nor for an evaluation that outlasts training:
    where slots are enough, the learner waits for batches exactly as long as without any evaluation."""

    class SlowSync(peers.ScriptedParameterServer):  # type: ignore[misc,name-defined]
        sync_s = 0.0

        @handles(SyncEvaluators, concurrent=True)
        async def sync(self, message: SyncEvaluators) -> VersionServed:
            await self.context.clock.sleep(self.sync_s)
            return VersionServed(self.world.version, self.world.steps[self.world.version])

    async def main(evaluation: EvaluationSettings | None, sync_s: float = 0.0) -> Any:
        world = peers.World(session_s=lambda rng: 1.0)
        dispatcher = Dispatcher(tasks=tasks, group_size=4, batch_sessions=8, max_lag_versions=1, evaluation=evaluation)
        run = _Run(peers, world, dispatcher, slots=64, max_steps=30)
        SlowSync.sync_s = sync_s
        await run.start()
        await run.finish()
        return world

    peers.ScriptedParameterServer, plain = SlowSync, peers.ScriptedParameterServer
    try:
        without = run_virtual(main(None))
        long = run_virtual(main(EvaluationSettings(num_prompts=100, samples=2, every_steps=10, max_in_flight=4)))
        late = run_virtual(main(EvaluationSettings(num_prompts=2, samples=1, every_steps=10), sync_s=90.0))
    finally:
        peers.ScriptedParameterServer = plain
    assert without.learner_waited_s > 0
    assert long.learner_waited_s == late.learner_waited_s == pytest.approx(without.learner_waited_s)
    assert len([m for m in long.metrics if m.stream == "eval"]) == 2, (
        "the first outlasted training; then that of the last version"
    )


def test_an_evaluation_that_hangs_is_given_up_and_counted(peers: ModuleType, tasks: TaskSource) -> None:
    async def main() -> Any:
        world = peers.World(session_s=lambda rng: 1e5 if rng.random() < 0.3 else 1.0)
        evaluation = EvaluationSettings(num_prompts=4, samples=2, every_steps=1000, max_in_flight=64, timeout_s=30.0)
        dispatcher = Dispatcher(
            tasks=tasks,
            group_size=2,
            batch_sessions=4,
            max_lag_versions=8,
            evaluation=evaluation,
            session_timeout_s=20.0,
        )
        run = _Run(peers, world, dispatcher, slots=64, max_steps=2)
        await run.start()
        await run.finish()
        return world

    world = run_virtual(main())
    evals = [m.values for m in world.metrics if m.stream == "eval"]
    assert evals[0]["missing"] > 0
    assert evals[0]["reward_n"] + evals[0]["greedy_n"] + evals[0]["missing"] == 12


def test_a_session_that_hangs_is_timed_out_and_its_task_quarantined(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """cases G104, F103: the poison task is listed, the run does not stall, and the wait for it is told with counts
    and ids."""

    async def main() -> tuple[Any, Dispatcher]:
        world = peers.World()
        dispatcher = Dispatcher(
            tasks=tasks, group_size=2, batch_sessions=4, max_lag_versions=0, max_attempts=2, session_timeout_s=60.0,
            stall_log_s=20.0, ledger_path=str(tmp_path / "ledger.sqlite"),
        )  # fmt: skip
        environment = peers.ScriptedEnvironment

        class Hanging(environment):  # type: ignore[misc,valid-type]
            async def _run(self, spec: Any) -> None:
                if spec.task.task_id == "t5":
                    await self.context.clock.sleep(1e7)
                await super()._run(spec)

        peers_with_hang = ModuleType("peers")
        peers_with_hang.__dict__.update(vars(peers) | {"ScriptedEnvironment": Hanging})
        run = _Run(peers_with_hang, world, dispatcher, slots=32, max_steps=10)
        await run.start()
        await run.finish()
        return world, dispatcher

    with caplog.at_level(logging.WARNING):
        world, dispatcher = run_virtual(main())
    lines = check_ledger(dispatcher, world, tmp_path / "ledger.sqlite")
    assert list(dispatcher.training.issuer.quarantined) == ["t5"]
    assert {line["reason"] for line in lines if line["task_id"] == "t5"} == {"timed_out", "quarantined"}
    waits = [r.getMessage() for r in caplog.records if "has waited" in r.getMessage()]
    assert any("2 running" in text and "g0000005-00 (running at environment/0" in text for text in waits), waits
    assert any("task t5 is quarantined" in r.getMessage() for r in caplog.records)


def test_an_empty_batch_after_wait_s_and_news_of_unknown_sessions(peers: ModuleType, tasks: TaskSource) -> None:
    """cases F103: news about a session that nobody knows does not disturb the loop."""

    async def main() -> None:
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        await runtime.add(Dispatcher(tasks=tasks, group_size=2, batch_sessions=4), "dispatcher")
        await runtime.context.tell("dispatcher", SessionsMoved((("nobody", 0), ("", 3)), "grader/9"))
        began_s = runtime.clock.time()
        batch = await runtime.context.ask("dispatcher", NextBatch(0, 3.0), timeout_s=60)
        assert batch.groups == ()
        assert runtime.clock.time() - began_s == pytest.approx(3.0)
        await runtime.stop()

    run_virtual(main())


class _Seats(Actor):
    """An environment that takes sessions and says nothing about them."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.attempts: list[int] = []

    def metadata(self) -> dict[str, object]:
        return {"slots": self.slots}

    @handles(RunSessions)
    async def run_sessions(self, message: RunSessions) -> Accepted:
        self.attempts += [spec.attempt for spec in message.sessions]
        return Accepted()


def test_an_environment_that_goes_is_told_of_in_one_line(tasks: TaskSource, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        network = LoopbackNetwork()
        runtime = Runtime(network)
        await runtime.start()
        dispatcher = Dispatcher(tasks=tasks, group_size=2, batch_sessions=8, max_lag_versions=0)
        await runtime.add(dispatcher, "dispatcher")
        apart = Runtime(network, directory=runtime.address)
        await apart.start()
        await apart.add(_Seats(slots=8), "environment/0")
        await runtime.context.tell("dispatcher", VersionServed(1, 0))
        await runtime.clock.sleep(1)
        assert dispatcher.placement.num_free == 0
        runtime.directory.process_down(apart.incarnation, "killed by signal 9")
        await runtime.clock.sleep(1)
        assert [(r.spec.attempt, r.losses) for r in dispatcher.training.ledger.records()] == [(1, 1)] * 8
        await apart.stop()
        await runtime.stop()

    with caplog.at_level(logging.INFO):
        run_virtual(main())
    told = [r.getMessage() for r in caplog.records if "g0000000" in r.getMessage()]
    assert told == [
        "8 sessions are lost (e.g. g0000000-00, g0000000-01, g0000001-00): environment/0 is gone: killed by signal 9"
    ]


def test_a_successor_is_not_given_what_its_predecessor_was_about_to_get(
    tasks: TaskSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ask waits for a name that is gone: the sessions would run there beside their next attempts."""

    async def main() -> None:
        network = LoopbackNetwork()
        runtime = Runtime(network)
        await runtime.start()
        dispatcher = Dispatcher(tasks=tasks, group_size=2, batch_sessions=8, max_lag_versions=0)
        await runtime.add(dispatcher, "dispatcher")
        on_disk = asyncio.Event()
        monkeypatch.setattr(dispatcher.seating, "_durable", on_disk.wait)
        former, later = (Runtime(network, directory=runtime.address) for _ in range(2))
        await former.start()
        await former.add(_Seats(slots=8), "environment/0")
        await runtime.context.tell("dispatcher", VersionServed(1, 0))
        await runtime.clock.sleep(1)
        runtime.directory.process_down(former.incarnation, "killed by signal 9")
        await runtime.clock.sleep(1)
        on_disk.set()
        await runtime.clock.sleep(1)
        successor = _Seats(slots=8)
        await later.start()
        await later.add(successor, "environment/0")
        await runtime.clock.sleep(5)
        assert successor.attempts == [1] * 8
        for ended in (former, later, runtime):
            await ended.stop()

    run_virtual(main())


def test_news_of_an_earlier_attempt_does_not_empty_the_slot_of_the_later_one(
    tasks: TaskSource,
) -> None:
    """SessionsMoved and SessionFailed are said again where the answer was lost."""

    async def main() -> None:
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        dispatcher = Dispatcher(tasks=tasks, group_size=2, batch_sessions=2, max_lag_versions=0)
        await runtime.add(dispatcher, "dispatcher")
        await runtime.add(_Seats(), "environment/0")
        tell = runtime.context.tell
        await tell("dispatcher", VersionServed(1, 0))
        await runtime.clock.sleep(1)
        sessions = [record.spec.session_id for record in dispatcher.training.ledger.records()]
        assert dispatcher.placement.num_free == 0
        for session_id in sessions:
            await tell("dispatcher", SessionFailed(session_id, 0, "failed", "once"))
        await runtime.clock.sleep(1)
        assert dispatcher.placement.num_free == 0, "the second attempts sit there"
        for session_id in sessions:
            await tell("dispatcher", SessionFailed(session_id, 0, "failed", "once"))
        await tell("dispatcher", SessionsMoved(tuple((s, 0) for s in sessions), "grader/0", "a grader"))
        await runtime.clock.sleep(1)
        assert dispatcher.placement.num_free == 0
        assert {r.state.value for r in dispatcher.training.ledger.records()} == {"running"}
        await tell("dispatcher", SessionsMoved(tuple((s, 1) for s in sessions), "grader/0"))
        await runtime.clock.sleep(1)
        assert {r.state.value for r in dispatcher.training.ledger.records()} == {"grading"}
        assert dispatcher.placement.num_free == 2
        await runtime.stop()

    run_virtual(main())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_sessions": 7}, "multiple of group_size"),
        ({"max_lag_versions": -1}, "max_lag_versions must be >= 0"),
        ({"hard_lag_versions": 1, "max_lag_versions": 4}, "hard_lag_versions"),
        ({"over_age": "ignore"}, "over_age must be one of train, mask, drop, cancel"),
        ({"temperature": 0.0}, "only evaluation is greedy"),
        ({"temperature": math.nan}, "only evaluation is greedy"),
        ({"temperature": math.inf}, "only evaluation is greedy"),
        ({"session_timeout_s": math.nan}, "session_timeout_s"),
    ],
)
def test_values_that_cannot_work_are_refused(tasks: TaskSource, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Dispatcher(**({"tasks": tasks, "group_size": 2, "batch_sessions": 4} | changes))
