"""Children's log files on the console: whole lines, prefixed with the process's name, as they grow. Called by
supervisor.py.

The files are written by the children themselves; here they are only read. What a line costs is bounded: a line longer
than MAX_LINE_BYTES is shown in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

MAX_LINE_BYTES = 16_384
MAX_READ_BYTES = 1 << 20
"""per file and call: a child that floods its log cannot stall the launcher"""


class LogTail:
    """Follows one file. `emit` gets each whole line, without its end."""

    def __init__(self, name: str, path: Path, emit: Callable[[str, str], None]) -> None:
        self._name, self._path, self._emit = name, path, emit
        self._offset = 0
        self._partial = b""

    def poll(self) -> None:
        """Emit the lines that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._emit_line(line)
        if len(self._partial) > MAX_LINE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Emit the last line though it has no end: its writer is gone."""
        if self._partial:
            line, self._partial = self._partial, b""
            self._emit_line(line)

    def drain(self) -> None:
        """Emit everything that is left."""
        before = -1
        while before != self._offset:
            before = self._offset
            self.poll()
        self.flush()

    def _emit_line(self, line: bytes) -> None:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]  # of a progress bar, what a terminal would show last
        for start in range(0, len(line), MAX_LINE_BYTES) or (0,):
            self._emit(self._name, line[start : start + MAX_LINE_BYTES].decode(errors="replace"))


def last_lines(path: Path, count: int = 20) -> str:
    """The end of a log, for an error report; at most 64 KiB of it are read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65_536))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-count:]) or "(the log is empty)"
