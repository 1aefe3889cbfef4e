"""Several nodes, each with its agent, in real processes: an agent that dies or hangs takes its node with it, and the
run goes on elsewhere, smaller, or ends by name. Nothing outlives any end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.processes import processes_of_sessions

Launch = Callable[..., Any]
Until = Callable[..., None]

QUICK = {"drain_timeout_s": 4.0, "silence_s": 60.0}


def nodes(worker_on_b: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "a": {"actors": {"finisher": {"count": 1}, **others}},
        "b": {"devices": [0, 1], "actors": {"worker": worker_on_b}},
    }


def roles(folder: Path, marks: int) -> dict[str, dict[str, Any]]:
    return {
        "worker": {"_target_": "run_plugins.Idle", "folder": str(folder)},
        "finisher": {"_target_": "run_plugins.Finisher", "folder": str(folder), "marks": marks},
    }


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_a_lost_node_ran_is_placed_where_there_is_room(
    number: signal.Signals, launch: Launch, tmp_path: Path, until: Until
) -> None:
    """design §4: a whole node. SIGSTOP leaves no exit to see: it is found by its silence, and killed."""
    run = launch(roles(tmp_path, marks=2), nodes({"count": 1}), **{**QUICK, "silence_s": 4.0})
    until(lambda: len(run.marks()) == 1, 60, "the worker is up")
    os.kill(run.agent("b"), number)
    assert run.end() == 0, run.output
    assert "node b is lost: its agent ended" in run.output
    assert "worker-0 is placed on a: node b is lost" in run.output
    assert run.outcome["restarts"] == {"worker-0": 1}
    assert run.descendants() == []
    if number is signal.SIGSTOP:
        assert "killed: no heartbeat for" in run.output


def test_an_agent_takes_with_it_what_its_processes_had_started(launch: Launch, tmp_path: Path, until: Until) -> None:
    """The parent-death signal ends the wrapper; worker and grandchild are the undertaker's. The run goes on."""
    family = {"_target_": "run_plugins.Family", "folder": str(tmp_path), "run_id": "RUN_ID"}
    given = {"a": {"actors": {"finisher": {"count": 1}}}, "b": {"actors": {"family": {"count": 1}}}}
    run = launch({"family": family, "finisher": roles(tmp_path, marks=3)["finisher"]}, given, **QUICK)
    until(lambda: len(run.marks()) == 1, 60, "the wrapper is up")
    sessions = run.marks()
    until(lambda: len(processes_of_sessions(sessions)) == 3, 30, "wrapper, worker and grandchild")
    os.kill(run.agent("b"), signal.SIGKILL)
    until(lambda: not processes_of_sessions(sessions), 5, "they are gone")
    until(lambda: len(run.marks()) == 2, 60, "the family lives on another node")
    (tmp_path / "mark-1").touch()
    assert run.end() == 0, run.output
    assert not processes_of_sessions(run.marks())


def test_what_needs_a_device_waits_for_its_node_to_return(launch: Launch, tmp_path: Path, until: Until) -> None:
    run = launch(roles(tmp_path, marks=2), nodes({"count": 1, "devices": 1}), **QUICK)
    until(lambda: len(run.marks()) == 1, 60, "the worker is up")
    os.kill(run.agent("b"), signal.SIGKILL)
    assert run.end() == 0, run.output
    assert "no room for worker-0: waiting for b" in run.output
    assert "worker-0 is placed on b: node b is back" in run.output


def test_a_run_goes_on_smaller_and_says_so(launch: Launch, tmp_path: Path, until: Until) -> None:
    """A third mark is made here, as nobody else would: the run must still be there to see it."""
    given = nodes({"count": 1, "devices": 1}, worker={"count": 1})
    run = launch(roles(tmp_path, marks=3), given, restart_nodes=False, **QUICK)
    until(lambda: len(run.marks()) == 2, 60, "both workers are up")
    os.kill(run.agent("b"), signal.SIGKILL)
    smaller = "without worker-1 (node b is lost, and no other has room)"
    until(lambda: run.has_said(f"going on {smaller}"), 30, "the launcher goes on")
    (tmp_path / "mark-1").touch()
    assert run.end() == 0, run.output
    assert run.outcome["reason"] == f"enough; it went on {smaller}"


def test_a_role_that_cannot_be_missed_fails_the_run_by_name(launch: Launch, tmp_path: Path, until: Until) -> None:
    given = nodes({"count": 1, "devices": 1})
    run = launch(roles(tmp_path, marks=9), given, restart_nodes=False, **QUICK)
    until(lambda: len(run.marks()) == 1, 60, "the worker is up")
    os.kill(run.agent("b"), signal.SIGKILL)
    assert run.end() == 1, run.output
    assert "worker-0 cannot be missed and has no place: node b is lost" in run.outcome["reason"]
    assert run.descendants() == []


@pytest.mark.parametrize("also_an_agent", [False, True])
def test_the_death_of_the_launcher_ends_every_node(
    also_an_agent: bool, launch: Launch, tmp_path: Path, until: Until
) -> None:
    """cases G106, with agents between: launcher → agent → wrapper → worker → grandchild."""
    family = {"_target_": "run_plugins.Family", "folder": str(tmp_path), "run_id": "RUN_ID"}
    given = {name: {"actors": {"family": {"count": 1}}} for name in ("a", "b")}
    run = launch({"family": family}, given, **QUICK)
    until(lambda: len(run.marks()) == 2, 60, "both wrappers are up")
    sessions = run.marks()
    agent = run.agent("b")
    os.kill(run.launcher.pid, signal.SIGKILL)
    if also_an_agent:
        os.kill(agent, signal.SIGKILL)
    until(lambda: not processes_of_sessions(sessions) and not run.descendants(), 5, "everything is gone")
    until(lambda: not list(Path("/dev/shm").glob(f"headrace-*.{run.launcher.pid}.*")), 5, "no shared memory is left")
    run.end()


def test_signals_end_several_nodes_in_order(launch: Launch, tmp_path: Path, until: Until) -> None:
    run = launch(roles(tmp_path, marks=9), nodes({"count": 2}), **QUICK)
    until(lambda: len(run.marks()) == 2, 60, "both workers are up")
    os.kill(run.launcher.pid, signal.SIGINT)
    assert run.end(20) == 130, run.output
    assert "killing" not in run.output
    assert "is lost" not in run.output
    assert run.descendants() == []


def test_a_death_is_known_at_once_also_below_an_agent(launch: Launch, tmp_path: Path) -> None:
    """The error reaches the caller by the agent's report and the directory's news. benchmarks measure the figure; here
    the bound is wide enough for a loaded machine."""
    killer = {"_target_": "run_plugins.Killer", "folder": str(tmp_path), "sleepers": 2, "kills": 4}
    given = {"a": {"actors": {"killer": {"count": 1}}}, "b": {"actors": {"sleeper": {"count": 2}}}}
    run = launch({"killer": killer, "sleeper": {"_target_": "run_plugins.Sleeper"}}, given, **QUICK)
    assert run.end(100) == 0, run.output
    seconds = json.loads((tmp_path / "seconds.json").read_text())
    assert len(seconds) == 4
    assert sorted(seconds)[len(seconds) // 2] < 0.5
    assert run.outcome["restarts"].keys() == {"sleeper-0", "sleeper-1"}
