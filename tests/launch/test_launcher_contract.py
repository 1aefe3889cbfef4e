"""What every launcher does, with small actors: finish, fail with the cause, and leave nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.console import Console
from headrace.launch.inprocess import InProcessLauncher
from headrace.launch.job import Job, Launcher, Outcome
from headrace.launch.local import LocalLauncher
from headrace.launch.network_settings import NetworkSettings
from headrace.launch.run_folder import write_config
from headrace.launch.shared_memory import run_id
from headrace.launch.topology import plan_topology, roles_of

LAUNCHERS = {
    "local": lambda: LocalLauncher(restart=["grader"], start_timeout_s=60, drain_timeout_s=4),
    "local over tcp": lambda: LocalLauncher(
        restart=["grader"], start_timeout_s=60, drain_timeout_s=4, network=NetworkSettings(bind="tcp://127.0.0.1")
    ),
    "local over streams": lambda: LocalLauncher(
        restart=["grader"], start_timeout_s=60, drain_timeout_s=4, network=NetworkSettings(bind="stream")
    ),
    "inprocess": lambda: InProcessLauncher(encode_local=True, max_wall_s=60),
}


def make_job(folder: Path, roles: dict[str, dict[str, Any]], **counts: int) -> Job:
    """One node; `roles`: config of each role."""
    actors = {role: {"count": counts.get(role, 1)} for role in roles}
    config: dict[str, Any] = {"topology": {"nodes": {"n": {"actors": actors}}}, **roles}
    (folder / "logs").mkdir()
    write_config(folder, config)
    processes, problems = plan_topology(config["topology"], roles_of(config))
    assert not problems
    return Job(folder, run_id(), config, processes, Console(quiet=True))


def run(launcher: Launcher, job: Job) -> Outcome:
    return asyncio.run(asyncio.wait_for(launcher.launch(job), 120))


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("name", LAUNCHERS)
class TestEveryLauncher:
    def test_a_run_that_finishes(self, name: str, tmp_path: Path) -> None:
        folder = str(tmp_path)
        finisher = {"_target_": "run_plugins.Finisher", "folder": folder, "marks": 1}
        job = make_job(
            tmp_path, {"idle": {"_target_": "run_plugins.Idle", "folder": folder}, "finisher": finisher}, idle=2
        )
        outcome = run(LAUNCHERS[name](), job)
        assert (outcome.ending, outcome.reason, outcome.exit_code) == ("finished", "enough", 0)

    def test_a_background_task_that_raises_stops_the_run_with_its_traceback(self, name: str, tmp_path: Path) -> None:
        """cases G107: NousResearch/hermes-agent#12001, google/tunix#1636."""
        outcome = run(LAUNCHERS[name](), make_job(tmp_path, {"raiser": {"_target_": "run_plugins.RaisesLater"}}))
        assert outcome.ending == "failed"
        assert outcome.exit_code == 1
        assert "ZeroDivisionError: the background task's own words" in outcome.reason
        assert "in _raise" in outcome.reason  # the traceback
