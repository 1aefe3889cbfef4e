"""Real processes: what ends a run, what is restarted, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.processes import processes_of_sessions

_LAUNCH = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_launcher_contract import make_job
from headrace.launch.local import LocalLauncher

roles = json.loads(sys.argv[2].replace("RUN_ID", __import__("headrace.launch.shared_memory", fromlist=["x"]).run_id()))
launcher = LocalLauncher(restart=["grader"], drain_timeout_s=float(sys.argv[4]), silence_s=float(sys.argv[5]))
outcome = asyncio.run(launcher.launch(make_job(Path(sys.argv[1]), roles)))
print(outcome.ending, outcome.reason)
sys.exit(outcome.exit_code)
"""


def start(
    folder: Path, roles: dict[str, dict[str, Any]], drain_timeout_s: float = 2.0, silence_s: float = 60.0
) -> subprocess.Popen[str]:
    arguments = [str(folder), json.dumps(roles), str(Path(__file__).parent), str(drain_timeout_s), str(silence_s)]
    return subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def marks(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("mark-*")]


def shared_memory_of(pid: int) -> list[Path]:
    return [path for path in Path("/dev/shm").iterdir() if f".{pid}." in path.name]


@pytest.mark.usefixtures("plugins")
class TestProcesses:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_a_signal_to_the_launcher_ends_the_whole_family(
        self, number: signal.Signals, tmp_path: Path, until: Callable[..., None]
    ) -> None:
        """cases G106: PrimeIntellect-ai/prime-rl#2158. launcher → wrapper → worker → grandchild: all gone in 5 s."""
        family = {"_target_": "run_plugins.Family", "folder": str(tmp_path), "run_id": "RUN_ID"}
        launcher = start(tmp_path, {"family": family})
        until(lambda: len(marks(tmp_path)) == 1, 60, "the wrapper is up")
        sessions = marks(tmp_path)
        until(lambda: len(processes_of_sessions(sessions)) == 3, 30, "wrapper, worker and grandchild")
        assert shared_memory_of(launcher.pid)
        launcher.send_signal(number)
        until(lambda: not processes_of_sessions(sessions), 5, "all processes are gone")
        until(lambda: not shared_memory_of(launcher.pid), 5, "no shared memory is left")
        output, _ = launcher.communicate(timeout=10)
        assert launcher.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number], output

    def test_one_that_hangs_is_killed_at_the_deadline(self, tmp_path: Path, until: Callable[..., None]) -> None:
        launcher = start(tmp_path, {"stubborn": {"_target_": "run_plugins.Stubborn", "folder": str(tmp_path)}})
        until(lambda: len(marks(tmp_path)) == 1, 60, "it is up")
        launcher.send_signal(signal.SIGINT)
        until(lambda: launcher.poll() is not None, 10, "the launcher has ended")
        assert not processes_of_sessions(marks(tmp_path))
        assert launcher.returncode == 130

    def test_a_second_signal_does_not_wait(self, tmp_path: Path, until: Callable[..., None]) -> None:
        launcher = start(
            tmp_path, {"stubborn": {"_target_": "run_plugins.Stubborn", "folder": str(tmp_path)}}, drain_timeout_s=100
        )
        until(lambda: len(marks(tmp_path)) == 1, 60, "it is up")

        def signalled_again() -> bool:
            launcher.send_signal(signal.SIGINT)
            return launcher.poll() is not None

        until(signalled_again, 10, "the launcher has ended")
        assert not processes_of_sessions(marks(tmp_path))

    def test_a_loss_that_is_fatal_is_told_with_its_last_lines(self, tmp_path: Path, until: Callable[..., None]) -> None:
        """cases L137: the failing process's last lines, half a line too, and the signal."""
        launcher = start(tmp_path, {"worker": {"_target_": "run_plugins.DiesOnce", "folder": str(tmp_path)}})
        output, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == 1
        assert "worker-0 ended (signal 9) and its role 'worker' is not restarted" in output
        assert "half a line before the end" in output
        assert (tmp_path / "logs" / "worker-0.log").read_text().endswith("half a line before the end")

    def test_a_role_that_may_be_restarted_is(self, tmp_path: Path) -> None:
        roles = {
            "grader": {"_target_": "run_plugins.DiesOnce", "folder": str(tmp_path)},
            "finisher": {"_target_": "run_plugins.Finisher", "folder": str(tmp_path), "marks": 1},
        }
        launcher = start(tmp_path, roles)
        output, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == 0, output
        assert "grader-0 ended (signal 9)" not in output  # the console is quiet; the run just went on
        assert len(marks(tmp_path)) == 1

    @pytest.mark.parametrize(("role", "code"), [("worker", 1), ("grader", 0)])
    def test_a_frozen_process_counts_as_one_that_ended(
        self, role: str, code: int, tmp_path: Path, until: Callable[..., None]
    ) -> None:
        """SIGSTOP: no exit to see, only silence. It is killed; then its role is restarted, or the run fails by name."""
        roles = {
            role: {"_target_": "run_plugins.FreezesOnce", "folder": str(tmp_path)},
            "finisher": {"_target_": "run_plugins.Finisher", "folder": str(tmp_path), "marks": 2},
        }
        launcher = start(tmp_path, roles, silence_s=5.0)
        output, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == code, output
        assert not processes_of_sessions(marks(tmp_path))
        if code:
            assert f"{role}-0 ended (killed: no heartbeat for" in output
            assert "is not restarted" in output


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
