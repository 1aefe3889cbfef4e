"""One process, one event loop, virtual time: a run of the real actors that repeats to the byte."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.console import Console
from headrace.launch.inprocess import InProcessLauncher
from headrace.launch.job import Job, Outcome
from headrace.launch.run_folder import write_config
from headrace.launch.shared_memory import run_id
from headrace.launch.topology import plan_topology, roles_of


def make_job(folder: Path, roles: dict[str, dict[str, Any]], **counts: int) -> Job:
    actors = {role: {"count": counts.get(role, 1)} for role in roles}
    config: dict[str, Any] = {"topology": {"nodes": {"n": {"actors": actors}}}, **roles}
    folder.mkdir()
    (folder / "logs").mkdir()
    write_config(folder, config)
    processes, problems = plan_topology(config["topology"], roles_of(config))
    assert not problems
    return Job(folder, run_id(), config, processes, Console(quiet=True))


def launch(launcher: InProcessLauncher, job: Job) -> Outcome:
    return asyncio.run(asyncio.wait_for(launcher.launch(job), 120))


@pytest.mark.usefixtures("plugins")
class TestVirtualTime:
    def run(self, folder: Path, seed: int | None, steps: int = 3) -> tuple[Outcome, list[Any]]:
        """The dispatcher and scripted peers that end after some batches."""
        name = "simulated_peers"
        roles: dict[str, dict[str, Any]] = {
            "dispatcher": {
                "_target_": "headrace.actors.dispatcher.actor.Dispatcher",
                "tasks": {"_target_": f"{name}.CountingTasks"},
                "group_size": 2,
                "batch_sessions": 4,
                "max_lag_versions": 1,
                "ledger_path": str(folder / "ledger.sqlite"),
            },
            "grader": {"_target_": f"{name}.SimulatedGrader"},
            "environment": {"_target_": f"{name}.SimulatedEnvironment", "slots": 4},
            "learner": {"_target_": f"{name}.SimulatedLearner", "steps": steps},
        }
        launcher = InProcessLauncher(clock="virtual", schedule_seed=seed)
        outcome = launch(launcher, make_job(folder, roles, environment=2))
        database = sqlite3.connect(folder / "ledger.sqlite")
        rows = list(database.execute("select * from sessions order by session_id"))
        database.close()
        return outcome, rows

    def test_a_seed_gives_the_same_ledger_and_another_seed_another(self, tmp_path: Path) -> None:
        outcome, first = self.run(tmp_path / "a", 1)
        assert outcome.ending == "finished", outcome.reason
        assert sum(row[5] == "trained" for row in first) == 12
        assert self.run(tmp_path / "b", 1)[1] == first
        assert any(self.run(tmp_path / str(seed), seed)[1] != first for seed in range(2, 12))

    def test_without_a_seed_it_repeats_too(self, tmp_path: Path) -> None:
        assert self.run(tmp_path / "a", None)[1] == self.run(tmp_path / "b", None)[1]

    def test_a_run_that_stands_still_is_ended(self, tmp_path: Path) -> None:
        folder = str(tmp_path)
        launcher = InProcessLauncher(clock="virtual", max_wall_s=3600.0)
        job = make_job(tmp_path / "a", {"idle": {"_target_": "run_plugins.Idle", "folder": folder}})
        outcome = launch(launcher, job)
        assert (outcome.ending, "max_wall_s=3600" in outcome.reason) == ("failed", True)


def test_what_contradicts_is_refused() -> None:
    with pytest.raises(ValueError, match="clock must be one of real, virtual, got 'fast'"):
        InProcessLauncher(clock="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="schedule_seed needs launch"):
        InProcessLauncher(schedule_seed=1)
    with pytest.raises(ValueError, match="schedule_seed must be >= 0 or null, got -1"):
        InProcessLauncher(clock="virtual", schedule_seed=-1)
