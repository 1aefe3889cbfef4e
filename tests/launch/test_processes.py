"""Killing a session to its last process, without losing what only its members can clean up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.launch.processes import is_resource_tracker, kill_sessions, processes_of_sessions

HOLDS_A_SEMAPHORE = """
import multiprocessing, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
semaphore = multiprocessing.get_context("spawn").Semaphore()
print(semaphore._semlock.name, flush=True)
signal.pause()
"""


def test_a_killed_session_leaves_no_semaphore_behind() -> None:
    """vLLM's processes hold such; their names are made by chance, so nobody else could find them."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_SEMAPHORE], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with child:
        assert child.stdout is not None
        file = Path("/dev/shm") / f"sem.{child.stdout.readline().strip().removeprefix('/')}"
        assert file.exists()
        while not any(map(is_resource_tracker, processes_of_sessions([child.pid]))):
            pass  # it is about to start
        assert kill_sessions([child.pid]) == []
    assert not file.exists()


def test_a_tracker_that_does_not_end_is_killed_too() -> None:
    """Its name is all that is known of it."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    arguments = [sys.executable, "-c", code, "multiprocessing.resource_tracker"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert kill_sessions([child.pid]) == []
