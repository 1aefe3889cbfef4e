"""Names and leftovers of a run's shared-memory files. Called by the launcher, and by the undertaker after a launcher
that was killed.

A run's files begin with `headrace-<run id>`. The id names the launcher by PID namespace, process id and start time,
so that a later launch can tell the files of a dead run from those of a living one. Libraries that a run uses (vLLM)
name their segments by chance, and leave them behind where they are killed: those are known by who was seen to map
them. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "headrace-"


def run_id() -> str:
    """The id of the run of this launcher process."""
    return f"{_pid_namespace()}.{os.getpid()}.{_start_ticks(os.getpid())}"


def prefix_of(run: str) -> str:
    """What the names of the run's files begin with."""
    return f"{PREFIX}{run}"


def remove_run(run: str, folder: Path = FOLDER) -> list[str]:
    """Remove the files of one run; returns their names. A file that is gone already is no error."""
    prefix = prefix_of(run)
    return _remove(path for path in _entries(folder) if path.name == prefix or path.name.startswith(prefix + "-"))


def remove_leftovers(folder: Path = FOLDER) -> list[str]:
    """Remove the files of dead runs of this PID namespace; files of living runs and of anyone else stay."""
    return _remove(path for path in _entries(folder) if _is_leftover(path.name))


def mapped_by(processes: Iterable[int], folder: Path = FOLDER) -> set[str]:
    """Names of the files of `folder` that these processes map. A process that is gone maps nothing."""
    start = f"{folder}/"
    names = set()
    for pid in processes:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        for line in lines:
            _, found, name = line.partition(start)
            if found and not name.endswith(" (deleted)"):
                names.add(name)
    return names


def remove_unmapped(names: Iterable[str], folder: Path = FOLDER) -> list[str]:
    """Remove these files, but for those that a living process maps (which then is none of the run's)."""
    names = set(names)
    if not names:
        return []
    living = mapped_by((int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()), folder)
    return _remove(folder / name for name in sorted(names - living))


def _is_leftover(name: str) -> bool:
    parts = name.removeprefix(PREFIX).partition("-")[0].split(".") if name.startswith(PREFIX) else []
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    namespace, pid, start = parts
    return int(namespace) == _pid_namespace() and _start_ticks(int(pid)) != int(start)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _remove(paths: Iterable[Path]) -> list[str]:
    removed = []
    for path in paths:
        try:
            path.unlink()
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            continue
        removed.append(path.name)
    return removed


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_ticks(pid: int) -> int:
    """Clock ticks from boot to the start of a process; 0 where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(")")[2].split()[19])
