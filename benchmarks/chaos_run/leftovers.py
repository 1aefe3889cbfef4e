"""What a run that has ended left on the machine: processes, sockets, shared memory.

A run's processes are known by its temporary folder, which stands in the environment of whatever descends from its
launcher, whoever the parent is now. Never touches anything but by `kill`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
GRACE_S = 15.0
"""for the undertakers of agents that were killed"""


def processes_of(temp_folder: Path, proc: Path = PROC) -> list[int]:
    """Process ids, zombies left out, in whose environment TMPDIR is this folder."""
    mark = b"TMPDIR=" + os.fsencode(temp_folder)
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):  # a zombie's is empty
                found.append(int(entry.name))
    return sorted(found)


def sockets_in(folder: Path) -> list[Path]:
    """Sockets, and folders made for them or for keys."""
    return sorted(path for path in folder.rglob("*") if path.is_socket() or path.name.startswith("headrace-"))


def segments_of(run_id: str, folder: Path = SHARED_MEMORY) -> list[Path]:
    """Files of a run in shared memory."""
    return sorted(path for path in folder.iterdir() if f"headrace-{run_id}" in path.name)


def leftovers(temp_folder: Path, run_id: str | None, *, grace_s: float = GRACE_S) -> list[str]:
    """All of it, in words, once nobody of the run lives or the time is over."""
    deadline_s = time.monotonic() + grace_s
    while (living := processes_of(temp_folder)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    left = [f"process {pid}: {_command(pid)}" for pid in living]
    left += [f"{path} is left" for path in sockets_in(temp_folder)]
    return left + [f"{path} is left" for path in (segments_of(run_id) if run_id else ())]


def kill(temp_folder: Path) -> None:
    """End what is left of the run."""
    for pid in processes_of(temp_folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "ended"
