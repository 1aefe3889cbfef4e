"""The processes of one run, by what stands in /proc, and the striking of one. Touches no other run's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that the run's supervisors started. `kind`: the role of its actors, or "node" for a node's agent."""

    pid: int
    name: str
    kind: str


def victims(folder: Path, proc: Path = PROC) -> list[Victim]:
    """The living processes of the run in `folder`, sorted by name."""
    return sorted(_victims(os.fsencode(folder), proc), key=lambda victim: victim.name)


def _victims(folder: bytes, proc: Path) -> Iterator[Victim]:
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked
        # python -m MODULE FOLDER NAME PARENT; a fork of one has its command line, too, but another parent
        if len(words) < 6 or words[3] != folder or words[5] != parent.encode() or state in "ZX":
            continue
        name = words[4].decode()
        if words[2] == b"headrace.launch.process":
            yield Victim(int(entry.name), name, name.rpartition("-")[0])
        elif words[2] == b"headrace.launch.node":
            yield Victim(int(entry.name), f"node {name}", "node")


def strike(victim: Victim, name: str) -> bool:
    """Send it the signal of this name; whether it was still there."""
    try:
        os.kill(victim.pid, signal.Signals[name])
    except ProcessLookupError:
        return False
    return True
