"""Facts about processes of this machine from /proc, and the killing of whole sessions. Standard library only; no state.

A child is started as the leader of its own session; whatever it starts stays in that session, whoever adopts it, so a
session is what is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

TRACKER_GRACE_S = 2.0


def processes_of_sessions(sessions: Iterable[int]) -> list[int]:
    """Process ids (zombies left out) whose session id is one of these."""
    wanted = set(sessions)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked
        state, session = fields[0], int(fields[3])
        if session in wanted and state not in "ZX":
            found.append(int(entry.name))
    return found


def kill_sessions(sessions: Iterable[int], timeout_s: float = 3.0) -> list[int]:
    """SIGKILL until nothing is left (a process may have forked meanwhile). Returns what outlived the time: nothing,
    unless a process hangs in the kernel.

    The resource trackers of multiprocessing get `TRACKER_GRACE_S` to end by themselves: once nobody is left whom they
    track for, they remove the semaphores and segments that the killed left behind, whose names nobody else knows.
    """
    sessions = list(sessions)
    began_s = time.monotonic()
    while processes := processes_of_sessions(sessions):
        waited_s = time.monotonic() - began_s
        if waited_s >= timeout_s:
            break
        spared = [pid for pid in processes if waited_s < TRACKER_GRACE_S and is_resource_tracker(pid)]
        _signal([pid for pid in processes if pid not in spared], signal.SIGKILL)
        time.sleep(0.02)
    return processes_of_sessions(sessions)


def is_resource_tracker(pid: int) -> bool:
    """Whether a process is the helper of multiprocessing that unlinks what others leave behind."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
