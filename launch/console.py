"""What the launcher prints: whole lines, each with the time since the start and who says it. A copy goes to a file,
for those who were not there."""

from __future__ import annotations

import contextlib
import sys
import time
from io import RawIOBase
from pathlib import Path


class Console:
    """`quiet`: on the terminal; the file has all."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._start_s = time.monotonic()
        self._quiet = quiet
        self._file: RawIOBase | None = None

    def keep(self, path: Path) -> None:
        """From now on every line is appended to this file, as soon as it is whole. Raises OSError."""
        if self._file is not None:
            self._file.close()
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def say(self, text: str) -> None:
        """The launcher's own progress."""
        self.line("launcher", text)

    def line(self, name: str, text: str) -> None:
        elapsed_s = time.monotonic() - self._start_s
        line = f"{elapsed_s:8.1f}s  {name:<18} {text}\n"
        self._copy(line)
        if not self._quiet:
            sys.stdout.write(line)
            sys.stdout.flush()

    def error(self, text: str) -> None:
        """Never silenced; on standard error."""
        line = text.rstrip("\n") + "\n"
        self._copy(line)
        sys.stdout.flush()
        sys.stderr.write(line)
        sys.stderr.flush()

    def _copy(self, line: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk is told by what cannot do without it
                self._file.write(line.encode("utf-8", "backslashreplace"))
