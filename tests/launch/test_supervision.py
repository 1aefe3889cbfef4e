"""Real processes: what ends a run, what is restarted, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.processes import processes_of_sessions

Launch = Callable[..., Any]
Until = Callable[..., None]


def one_node(*roles: str) -> dict[str, Any]:
    return {"n": {"actors": {role: {"count": 1} for role in roles}}}


def plugin(name: str, **arguments: object) -> dict[str, object]:
    return {"_target_": f"run_plugins.{name}", **arguments}


def shared_memory_of(pid: int) -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if f".{pid}." in path.name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_the_whole_family(
    number: signal.Signals, launch: Launch, tmp_path: Path, until: Until
) -> None:
    """cases G106: PrimeIntellect-ai/prime-rl#2158. launcher → wrapper → worker → grandchild: all gone in 5 s."""
    run = launch({"family": plugin("Family", folder=str(tmp_path), run_id="RUN_ID")}, one_node("family"))
    until(lambda: len(run.marks()) == 1, 60, "the wrapper is up")
    sessions = run.marks()
    until(lambda: len(processes_of_sessions(sessions)) == 3, 30, "wrapper, worker and grandchild")
    assert shared_memory_of(run.launcher.pid)
    run.launcher.send_signal(number)
    until(lambda: not processes_of_sessions(sessions), 5, "all processes are gone")
    until(lambda: not shared_memory_of(run.launcher.pid), 5, "no shared memory is left")
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143, signal.SIGKILL: -9}
    assert run.end(10) == codes[number], run.output


class TestTheEnd:
    """messaging fault 24."""

    def test_one_that_hangs_is_killed_at_the_deadline(self, launch: Launch, tmp_path: Path, until: Until) -> None:
        run = launch({"stubborn": plugin("Stubborn", folder=str(tmp_path))}, one_node("stubborn"), drain_timeout_s=2.0)
        until(lambda: len(run.marks()) == 1, 60, "it is up")
        run.launcher.send_signal(signal.SIGINT)
        assert run.end(10) == 130, run.output
        assert "killing stubborn-0: still there at the deadline" in run.output
        assert not processes_of_sessions(run.marks())

    def test_a_second_signal_does_not_wait(self, launch: Launch, tmp_path: Path, until: Until) -> None:
        roles = {"stubborn": plugin("Stubborn", folder=str(tmp_path))}
        run = launch(roles, one_node("stubborn"), drain_timeout_s=100.0)
        until(lambda: len(run.marks()) == 1, 60, "it is up")

        def signalled_again() -> bool:
            run.launcher.send_signal(signal.SIGINT)
            return run.launcher.poll() is not None

        until(signalled_again, 10, "the launcher has ended")
        assert not processes_of_sessions(run.marks())

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_while_it_starts(
        self, number: signal.Signals, launch: Launch, tmp_path: Path, until: Until
    ) -> None:
        """An on_start that would take for ever is not waited for."""
        run = launch({"worker": plugin("NeverUp", folder=str(tmp_path))}, one_node("worker"), drain_timeout_s=30.0)
        until(lambda: len(run.marks()) == 1, 60, "it hangs in its on_start")
        run.launcher.send_signal(number)
        assert run.end(20) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], run.output
        assert "killing" not in run.output
        assert not processes_of_sessions(run.marks())

    def test_a_signal_during_a_bulk_send(self, launch: Launch, tmp_path: Path, until: Until) -> None:
        roles = {"pours": plugin("Pours"), "sink": plugin("Sink", folder=str(tmp_path))}
        run = launch(roles, one_node("pours", "sink"), drain_timeout_s=30.0)
        until(lambda: len(run.marks()) == 1, 60, "arrays are under way")
        run.launcher.send_signal(signal.SIGTERM)
        assert run.end(20) == 143, run.output
        assert "killing" not in run.output
        assert run.descendants() == []


class TestLosses:
    def test_a_loss_that_is_fatal_is_told_with_its_last_lines(self, launch: Launch, tmp_path: Path) -> None:
        """cases L137: the failing process's last lines, half a line too, and the signal."""
        run = launch({"worker": plugin("DiesOnce", folder=str(tmp_path))}, one_node("worker"), restart=[])
        assert run.end() == 1
        assert "worker-0 ended (signal 9) and its role 'worker' is not restarted" in run.outcome["reason"]
        assert "half a line before the end" in run.outcome["reason"]
        assert (tmp_path / "logs" / "worker-0.log").read_text().endswith("half a line before the end")

    def test_a_process_that_dies_is_started_again(self, launch: Launch, tmp_path: Path) -> None:
        roles = {
            "worker": plugin("DiesOnce", folder=str(tmp_path)),
            "finisher": plugin("Finisher", folder=str(tmp_path), marks=1),
        }
        run = launch(roles, one_node("worker", "finisher"))
        assert run.end() == 0, run.output
        assert "worker-0 ended (signal 9); it is started again in" in run.output
        assert run.outcome["restarts"] == {"worker-0": 1}
        assert len(run.marks()) == 1

    @pytest.mark.parametrize("restart", [None, []])
    def test_a_frozen_process_counts_as_one_that_ended(
        self, restart: list[str] | None, launch: Launch, tmp_path: Path
    ) -> None:
        """SIGSTOP: no exit to see, only silence. It is killed; then it is started again, or the run fails by name."""
        roles = {
            "worker": plugin("FreezesOnce", folder=str(tmp_path)),
            "finisher": plugin("Finisher", folder=str(tmp_path), marks=2),
        }
        run = launch(roles, one_node("worker", "finisher"), restart=restart, silence_s=4.0)
        assert run.end() == (0 if restart is None else 1), run.output
        assert "worker-0 ended (killed: no heartbeat for" in run.output
        assert not processes_of_sessions(run.marks())

    def test_one_that_hangs_before_it_joins_has_a_deadline(self, launch: Launch, tmp_path: Path) -> None:
        roles = {
            "worker": plugin("NeverUp", folder=str(tmp_path)),
            "finisher": plugin("Finisher", folder=str(tmp_path), marks=2),
        }
        run = launch(roles, one_node("worker", "finisher"), start_timeout_s=6.0)
        assert run.end() == 0, run.output
        assert "worker-0 ended (killed: it was not up within launch.start_timeout_s=6)" in run.output

    def test_a_crash_in_a_constructor_is_a_storm_that_ends_the_run_by_its_first_cause(self, launch: Launch) -> None:
        """messaging fault 23."""
        run = launch({"worker": plugin("CrashesAtOnce")}, one_node("worker"))
        assert run.end() == 1
        assert "worker-0 ended before it was up, 3 times in a row" in run.outcome["reason"]
        assert "the constructor's own words" in run.outcome["reason"]

    @pytest.mark.parametrize("steps", [0, 1])
    def test_a_failure_that_comes_back_each_time_ends_the_run_unless_it_gets_on(
        self, steps: int, launch: Launch, tmp_path: Path
    ) -> None:
        """Each life is up, works for a while and ends as the one before, too seldom for a storm."""
        learner = plugin("StepsAndEnds", folder=str(tmp_path), steps=steps, lives=4)
        run = launch({"learner": learner}, one_node("learner"), max_restarts=100, max_restarts_without_step=2)
        if steps:
            assert run.end() == 0, run.output
            assert run.outcome["restarts"] == {"learner-0": 4}
        else:
            assert run.end() == 1, run.output
            assert "learner-0 ended 3 times without a training step in between" in run.outcome["reason"]
            assert "no room for version 1" in run.outcome["reason"]


@pytest.mark.parametrize("lines", [1000])
def test_a_kill_loses_no_line(lines: int, launch: Launch, tmp_path: Path) -> None:
    """Logging, print and C in turn, then SIGKILL: all of it is in the log and, in whole lines, on the console."""
    run = launch({"chatter": plugin("Chatter", lines=lines)}, one_node("chatter"), restart=[])
    assert run.end() == 1
    in_log = (tmp_path / "logs" / "chatter-0.log").read_text().split("\n")
    on_console = [line for line in run.output.splitlines() if "  chatter-0 " in line]
    for i in range(lines):
        logged, printed, from_c = in_log[3 * i : 3 * i + 3]
        assert logged.endswith(f"E headrace.chatter: logged {i}")
        assert (printed, from_c) == (f"printed {i}", f"from C {i}")
        for j, text in enumerate((f"E logged {i}", f"printed {i}", f"from C {i}")):
            assert on_console[3 * i + j].endswith(f" {text}")
    assert in_log[3 * lines] == "half a line"


def test_a_child_whose_launcher_is_gone_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.launch.process", str(tmp_path), "worker-0", str(os.getpid() + 1)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "is gone" in done.stderr
