"""One supervised child process: start it in a session of its own, learn of its end, signal it, and leave nothing of
its session.

Its standard output and error go straight to a log file, so that what it printed before it was killed is there. Called
from the main thread only (see parent_death.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.launch.processes import kill_sessions


class Child:
    """`ended` is a future with the exit code (negative: the signal's number)."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path, first_line: str = ""
    ) -> None:
        """`first_line` is written to its standard input, which then ends."""
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._pidfd, self._reap)
        self._feed(first_line)

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its session."""
        return self._process.pid

    def ask_to_stop(self) -> None:
        """SIGTERM to the process itself; what it started is its own to stop."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> list[int]:
        """SIGKILL to its whole session. Returns the processes that outlived it (none, unless one hangs in the
        kernel)."""
        return kill_sessions([self.pid])

    def _feed(self, line: str) -> None:
        pipe = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it ended at once: `ended` tells how
            if pipe is not None:
                pipe.write(line.encode())
                pipe.close()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        if not self.ended.done():
            self.ended.set_result(code)
