"""What a source of records is: parts in a fixed order, each readable from a position on. Paths and globs as files.

A position is what the kind counts in (bytes of a text file, rows of a table); 0 is the beginning of every part.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

Paths = str | Sequence[str]
"""A file or a glob ("data/**/*.jsonl"), or several."""

_EDGE_BYTES = 1 << 16


class Records(Protocol):
    def parts(self) -> list[str]:
        """Names of the parts, at least one, in the same order each time. Raises ValueError where nothing is found."""

    def read(self, part: str, position: int = 0) -> Iterator[tuple[Any, int]]:
        """The records of one part from `position` on, each with the position behind it. Nothing is read ahead of more
        than a chunk. Raises ValueError, with its place, for what is no record."""

    def fingerprint(self) -> str:
        """A hash that changes with what is read: names, sizes, and the edges of each part."""


class NoSuchFile(FileNotFoundError, ValueError):
    """Says which path, and what to give."""


def found_files(paths: Paths, key: str = "paths") -> list[str]:
    """The files that `paths` means, sorted, each once. Raises ValueError where one of them means none."""
    given = [paths] if isinstance(paths, str) else [str(path) for path in paths]
    found: set[str] = set()
    for path in given:
        files = [file for file in glob.glob(path, recursive=True) if Path(file).is_file()]
        if not files and Path(path).is_file():  # a name with brackets in it
            files = [path]
        if not files:
            raise NoSuchFile(f"{key} {path!r} cannot be read: no such file; give a file or a glob (**/*.jsonl)")
        found.update(files)
    if not found:
        raise ValueError(f"{key} must name at least one file or glob, got none")
    return sorted(found)


def files_fingerprint(files: Sequence[str]) -> str:
    """Of names (without folders), sizes, and the first and last 64 KiB: cheap for corpora of any size."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        path = Path(file)
        size = path.stat().st_size
        digest.update(f"{path.name}\x1f{size}\x1f".encode())
        with path.open("rb") as opened:
            digest.update(opened.read(_EDGE_BYTES))
            opened.seek(max(0, size - _EDGE_BYTES))
            digest.update(opened.read(_EDGE_BYTES))
    return digest.hexdigest()
