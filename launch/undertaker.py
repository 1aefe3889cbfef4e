"""A tiny process that outlives the launcher: when the launcher is gone, it kills what is left of the run and removes
its files.

It holds the read end of a pipe whose write end only the launcher has, so it notices every kind of death, kill -9 too.
One exists for each run; it is in a session of its own and ignores the signals of a terminal. The launcher writes
lines to it:

    session 1234        a child that leads this session was started
    shm <run id>        the run's shared-memory files are named after this id
    folder <path>       a private folder (sockets) to remove
    done                the launcher has ended its children by itself

In the end it removes what the sessions were seen to map and nobody maps any more: engines that are killed leave theirs
behind. It imports the standard library only, so that it stays at a few megabytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.launch.processes import kill_sessions, processes_of_sessions
from headrace.launch.shared_memory import mapped_by, remove_run, remove_unmapped

LOOK_EVERY_S = 3.0


class Undertaker:
    """The launcher's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.launch.undertaker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch_session(self, session: int) -> None:
        self._tell(f"session {session}")

    def remove_shared_memory(self, run_id: str) -> None:
        self._tell(f"shm {run_id}")

    def remove_folder(self, folder: Path) -> None:
        self._tell(f"folder {folder}")

    def dismiss(self) -> None:
        """The launcher has cleaned up."""
        self._tell("done")
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin:
                self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        # Where the undertaker itself was killed, the children's parent-death signal still holds.
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    follow(_lines(sys.stdin.fileno(), LOOK_EVERY_S))


def follow(lines: Iterable[str | None]) -> None:
    """Do as the launcher's lines say; None is a moment without one. Where they end without `done`, the launcher is
    dead."""
    sessions: list[int] = []
    run_ids: list[str] = []
    folders: list[str] = []
    segments: set[str] = set()
    for line in lines:
        word, _, rest = (line or "").partition(" ")
        if line is None:
            segments |= mapped_by(processes_of_sessions(sessions))
        elif word == "session":
            sessions.append(int(rest))
        elif word == "shm":
            run_ids.append(rest)
        elif word == "folder":
            folders.append(rest)
        elif word == "done":
            break
    else:
        bury(sessions, run_ids, folders)
    remove_unmapped(segments)


def bury(sessions: list[int], run_ids: list[str], folders: list[str]) -> None:
    kill_sessions(sessions, timeout_s=10)
    for run_id in run_ids:
        remove_run(run_id)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _lines(descriptor: int, period_s: float) -> Iterator[str | None]:
    """Lines as they come, None whenever none came for `period_s`; ends where the writer is gone."""
    rest = b""
    while True:
        if not select.select([descriptor], [], [], period_s)[0]:
            yield None
            continue
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode()


if __name__ == "__main__":
    main()
