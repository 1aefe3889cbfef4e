"""Text files and JSON lines as records: split at a separator, read in chunks. Positions are byte offsets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace.actors.records.protocol import Paths, files_fingerprint, found_files

_CHUNK_BYTES = 1 << 20


class TextRecords:
    """The parts of UTF-8 files between `separator`s, as texts; empty ones are left out."""

    def __init__(self, paths: Paths, *, separator: str = "\n") -> None:
        if not separator:
            raise ValueError("separator must not be empty; '\\n' makes each line a document")
        self._paths = paths
        self._separator = separator.encode()

    def parts(self) -> list[str]:
        return found_files(self._paths)

    def read(self, part: str, position: int = 0) -> Iterator[tuple[str, int]]:
        for piece, end in _pieces(part, self._separator, position):
            text = _decoded(piece, part, end)
            if text:
                yield text, end

    def fingerprint(self) -> str:
        return files_fingerprint(self.parts())


class JsonLinesRecords:
    """The JSON object of each line; blank lines are left out."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def parts(self) -> list[str]:
        return found_files(self._paths)

    def read(self, part: str, position: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        for line, end in _pieces(part, b"\n", position):
            if line.strip():
                yield self._record(line, part, end), end

    def fingerprint(self) -> str:
        return files_fingerprint(self.parts())

    @staticmethod
    def _record(line: bytes, part: str, end: int) -> dict[str, Any]:
        try:
            record = json.loads(_decoded(line, part, end))
        except json.JSONDecodeError as error:
            raise ValueError(f"{_place(part, end)} is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{_place(part, end)} must be a JSON object, got {line[:80]!r}")
        return record


def _pieces(path: str, separator: bytes, position: int) -> Iterator[tuple[bytes, int]]:
    """(piece without its separator, offset behind the separator), from `position` on."""
    with open(path, "rb") as file:
        file.seek(position)
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            *whole, rest = (rest + chunk).split(separator)
            for piece in whole:
                position += len(piece) + len(separator)
                yield piece, position
    if rest:
        yield rest, position + len(rest)


def _decoded(piece: bytes, part: str, end: int) -> str:
    try:
        return piece.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{_place(part, end)} is not UTF-8 ({error.reason}); convert the file") from None


def _place(part: str, end: int) -> str:
    """For errors only: counts the lines up to there."""
    with open(part, "rb") as file:
        before = file.read(end)
    number = before.count(b"\n") + (not before.endswith(b"\n"))
    return f"{part}, line {number}"
