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


def signal_sessions(sessions: Iterable[int], number: signal.Signals) -> int:
    """Send a signal to every process of these sessions; returns how many there were."""
    processes = processes_of_sessions(sessions)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(processes)


def kill_sessions(sessions: Iterable[int], timeout_s: float = 3.0) -> list[int]:
    """SIGKILL until nothing is left (a process may have forked meanwhile). Returns what outlived the time: nothing,
    unless a process hangs in the kernel."""
    sessions = list(sessions)
    deadline = time.monotonic() + timeout_s
    while signal_sessions(sessions, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.02)
    return processes_of_sessions(sessions)
