"""The dispatcher actor is killed and started again among scripted peers, at many moments of a run; the others too."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.actors.dispatcher.actor import Dispatcher
from headrace.actors.dispatcher.evaluation import EvaluationSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.transport import LoopbackNetwork, Runtime, run_virtual


class _Mortal(Dispatcher):
    """A process that is killed does nothing at its end."""

    async def on_stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()


class _Theatre:
    """A runtime for the directory and the peers; the dispatcher and the learner each have one of their own."""

    def __init__(self, peers: ModuleType, world: Any, make: Callable[[], Dispatcher], max_steps: int) -> None:
        self.peers, self.world, self.make, self.max_steps = peers, world, make, max_steps
        self.network = LoopbackNetwork()
        self.ended = False
        self.apart: dict[str, Runtime] = {}

    async def start(self) -> None:
        self.runtime = Runtime(self.network)
        await self.runtime.start()
        peers, world = self.peers, self.world
        await self.runtime.add(peers.Collector(world=world), "supervisor")
        await self.runtime.add(peers.Collector(world=world), "monitor")
        await self.runtime.add(peers.ScriptedParameterServer(world=world), "parameter_server")
        for index in range(2):
            await self.begin(f"grader/{index}")
            await self.begin(f"environment/{index}")
        await self.begin("dispatcher")
        await self.begin("learner")

    async def begin(self, name: str) -> None:
        self.apart[name] = Runtime(self.network, directory=self.runtime.address)
        await self.apart[name].start()
        await self.apart[name].add(self._actor(name), name)

    def _actor(self, name: str) -> Any:
        if name == "dispatcher":
            self.dispatcher = self.make()
            return self.dispatcher
        if name == "learner":
            return self.peers.ScriptedLearner(world=self.world, max_steps=self.max_steps, save_every=4)
        if name.startswith("grader"):
            return self.peers.ScriptedGrader(world=self.world)
        return self.peers.ScriptedEnvironment(world=self.world, slots=16)

    async def kill(self, name: str, *, back_after_s: float = 0.7) -> None:
        """As the supervisor sees it: the process is gone, is declared so, and another one starts."""
        dead = self.apart[name]
        await dead.stop(grace_s=0.0)
        self.runtime.directory.process_down(dead.incarnation, "killed")
        await asyncio.sleep(back_after_s)
        await self.begin(name)

    async def finish(self) -> None:
        async with asyncio.timeout(3600):
            await self.world.finished.wait()
        for runtime in [*self.apart.values(), self.runtime]:
            assert not runtime.failed.done()
            await runtime.stop()

    async def end(self) -> None:
        """Everybody ends at once, at any moment."""
        for runtime in [*self.apart.values(), self.runtime]:
            await runtime.stop(grace_s=0.0)
        self.ended = True


def play(
    peers: ModuleType,
    tasks: TaskSource,
    path: Path,
    script: Callable[[_Theatre], Any],
    *,
    max_steps: int = 20,
    evaluation: EvaluationSettings | None = None,
    earlier: _Theatre | None = None,
    run_id: str = "first",
    **changes: Any,
) -> _Theatre:
    """`script` may end the run itself, by `theatre.end`. earlier: the run that this one resumes."""

    async def main() -> _Theatre:
        world = peers.World(**changes) if earlier is None else earlier.world
        world.finished = asyncio.Event()

        def make() -> Dispatcher:
            return _Mortal(
                tasks=tasks, group_size=4, batch_sessions=8, max_lag_versions=2, ledger_path=str(path),
                evaluation=evaluation, metrics_every_s=1.0, max_losses=2, run_id=run_id,
            )  # fmt: skip

        theatre = _Theatre(peers, world, make, max_steps)
        await theatre.start()
        await script(theatre)
        if not theatre.ended:
            await theatre.finish()
        return theatre

    return run_virtual(main())


def rows(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("select * from sessions order by session_id")]


def check(theatre: _Theatre, path: Path, *, max_steps: int = 20) -> list[dict[str, Any]]:
    """Every session ends once, what is trained agrees with the learner's own record, no task is skipped or twice."""
    found, world = rows(path), theatre.world
    assert {row["state"] for row in found} == {"trained", "dropped"}
    trained = {row["session_id"]: (row["step"], row["lag"]) for row in found if row["state"] == "trained"}
    assert trained == {session_id: (step, lag) for step, session_id, lag in world.trained}
    assert len(world.ever_trained) == len(set(world.ever_trained)), "trained twice"
    assert {step for step, _, _ in world.trained} == set(range(1, max_steps + 1))
    tasks = {row["group_id"]: row["task_index"] for row in found}
    assert list(dict.fromkeys(tasks.values())) == list(range(len(set(tasks.values()))))
    rolled_back = {row["group_id"] for row in found if row["reason"] == "rolled_back"}
    counted = [index for group_id, index in tasks.items() if group_id not in rolled_back]
    assert len(counted) == len(set(counted)), "a task was issued twice though its group was not lost"
    again = theatre.dispatcher.training.issuer.again
    assert set(counted) | set(again) == set(tasks.values()), "a task of a lost group did not come again"
    assert world.num_finished == 1
    return found


@pytest.mark.parametrize("moment_s", [0.05, 0.35, 0.9, 3.0, 6.01, 9.5, 14.3, 17.77, 21.0])
def test_a_killed_dispatcher_goes_on_and_nobody_notices(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path, moment_s: float
) -> None:
    async def script(theatre: _Theatre) -> None:
        for _ in range(2):
            await asyncio.sleep(moment_s)
            await theatre.kill("dispatcher")

    path = tmp_path / "ledger.sqlite"
    theatre = play(peers, tasks, path, script)
    found = check(theatre, path)
    assert {row["reason"] for row in found} <= {None, "over_age", "cancelled"}
    assert max(row["attempt"] for row in found) == 0, "everything was still where it was"


@pytest.mark.parametrize("moment_s", [0.2, 4.0, 8.1, 12.6, 19.0])
def test_a_restarted_learner_has_the_ledger_roll_back(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path, moment_s: float
) -> None:
    async def script(theatre: _Theatre) -> None:
        await asyncio.sleep(moment_s)
        await theatre.kill("learner")

    path = tmp_path / "ledger.sqlite"
    theatre = play(peers, tasks, path, script)
    found = check(theatre, path)
    rolled_back = {row["session_id"] for row in found if row["reason"] == "rolled_back"}
    lost = set(theatre.world.ever_trained) - {session_id for _, session_id, _ in theatre.world.trained}
    assert lost <= rolled_back
    assert len(rolled_back - lost) <= 8, "the batch that it had"


@pytest.mark.parametrize("seed", range(12))
def test_everybody_dies_now_and_then(peers: ModuleType, tasks: TaskSource, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def script(theatre: _Theatre) -> None:
        for _ in range(8):
            await asyncio.sleep(rng.uniform(0.0, 5.0))
            name = rng.choice(["dispatcher", "dispatcher", "learner", "environment/0", "environment/1", "grader/0"])
            if not theatre.world.finished.is_set():
                await theatre.kill(name, back_after_s=rng.uniform(0.1, 3.0))

    path = tmp_path / "ledger.sqlite"
    check(play(peers, tasks, path, script), path)


@pytest.mark.parametrize("after_s", [0.0, 0.2, 1.0, 2.5])
def test_the_final_evaluation_is_made_again(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path, after_s: float
) -> None:
    """A dispatcher that dies in it: the run still ends with that evaluation, of the last version."""

    async def script(theatre: _Theatre) -> None:
        while not theatre.dispatcher.training.finished:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
        await asyncio.sleep(after_s)
        await theatre.kill("dispatcher")

    path = tmp_path / "ledger.sqlite"
    evaluation = EvaluationSettings(num_prompts=4, samples=2, every_steps=50)
    theatre = play(peers, tasks, path, script, max_steps=6, evaluation=evaluation, session_s=lambda rng: 2.0)
    check(theatre, path, max_steps=6)
    evals = [m for m in theatre.world.metrics if m.stream == "eval"]
    assert int(evals[-1].step) == theatre.world.version
    assert evals[-1].values["missing"] == 0
    assert evals[-1].values["reward_n"] == 8


def test_an_evaluation_is_made_again_where_an_evaluator_joins(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path
) -> None:
    """It would hold the requests of this evaluation until the next one."""

    async def script(theatre: _Theatre) -> None:
        while theatre.dispatcher.evaluator.num_seated == 0:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
        await theatre.runtime.add(theatre.peers.Collector(world=theatre.world), "evaluator/0")

    path = tmp_path / "ledger.sqlite"
    evaluation = EvaluationSettings(num_prompts=4, samples=2, every_steps=50)
    theatre = play(peers, tasks, path, script, max_steps=6, evaluation=evaluation, session_s=lambda rng: 2.0)
    evals = [m for m in theatre.world.metrics if m.stream == "eval"]
    assert [m.values["missing"] for m in evals] == [0, 0]
    assert any(session_id.startswith("e000001-") for session_id in theatre.world.cancelled)


@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_ends_at_any_moment_is_resumed(
    peers: ModuleType, tasks: TaskSource, tmp_path: Path, seed: int
) -> None:
    """Often enough that each open session would have met max_losses: what ended with the run is nobody's loss."""
    rng = random.Random(seed)

    async def cut(theatre: _Theatre) -> None:
        await asyncio.sleep(rng.uniform(0.2, 6.0))
        await theatre.end()

    async def wait(theatre: _Theatre) -> None: ...

    path = tmp_path / "ledger.sqlite"
    theatre = None
    for life in range(6):
        theatre = play(peers, tasks, path, cut, earlier=theatre, run_id=f"life {life}")
    theatre = play(peers, tasks, path, wait, earlier=theatre, run_id="last")
    found = check(theatre, path)
    assert {row["reason"] for row in found} <= {None, "over_age", "cancelled", "rolled_back"}


def test_a_run_that_was_over_goes_on_with_more_steps(peers: ModuleType, tasks: TaskSource, tmp_path: Path) -> None:
    """The tasks of what was open at its end come again."""

    async def wait(theatre: _Theatre) -> None: ...

    path = tmp_path / "ledger.sqlite"
    first = play(peers, tasks, path, wait, max_steps=4)
    cancelled = {row["task_index"] for row in rows(path) if row["reason"] == "cancelled"}
    assert cancelled
    second = play(peers, tasks, path, wait, max_steps=12, earlier=first, run_id="second")
    groups = {row["group_id"]: row["task_index"] for row in rows(path)}
    assert Counter(groups.values()) == {index: 1 + (index in cancelled) for index in set(groups.values())}
    assert second.world.num_finished == 2
    assert {step for step, _, _ in second.world.trained} == set(range(1, 13))
