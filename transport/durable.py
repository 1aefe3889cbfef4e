"""What survives a machine that loses its power, and a process that is killed while it writes."""

from __future__ import annotations

import os
from pathlib import Path

_LOOK_BACK_BYTES = 1 << 16


def sync(path: Path) -> None:
    """A file, or what a folder lists, is on the disk when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut_half_line(path: Path) -> None:
    """Of a file of lines: what a writer that was killed left of its last one goes, so that the next begins a line.
    Nothing where there is no file. Raises OSError."""
    if path.exists():
        with open(path, "r+b") as file:
            file.truncate(_end_of_whole_lines(file.fileno()))


def _end_of_whole_lines(file: int) -> int:
    """The offset behind the last newline; 0 where there is none."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _LOOK_BACK_BYTES)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
