"""Where the texts of pre-training come from. A source of one's own is a class with `documents`, named by `_target_`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol


class DocumentSource(Protocol):
    def documents(self, seed: int) -> Iterator[str]:
        """An endless sequence of texts; the same seed gives the same sequence in every process."""


class GeneratedDocuments:
    """Texts made by a function of a random generator: make(random.Random) → text. Never runs dry, never repeats an
    epoch. In YAML: `make: {_target_: my_package.texts.make_text, _partial_: true}`."""

    def __init__(self, *, make: Callable[[random.Random], str]) -> None:
        if not callable(make):
            raise ValueError(f"documents.make must be callable, got {make!r}; in YAML give it _partial_: true")
        self._make = make

    def documents(self, seed: int) -> Iterator[str]:
        rng = random.Random(seed)
        while True:
            yield self._make(rng)


class TextFile:
    """The parts of one UTF-8 file, cut at `separator` (a newline by default), shuffled anew in each epoch."""

    def __init__(self, *, path: str, separator: str = "\n") -> None:
        if not separator:
            raise ValueError("documents.separator must not be empty; '\\n' makes each line a document")
        self._path = Path(path)
        self._separator = separator

    def documents(self, seed: int) -> Iterator[str]:
        text = _read(self._path)
        return _epochs([part for part in text.split(self._separator) if part], seed, self._path)


class JsonLines:
    """The string under `field` of each line of a JSON-lines file, shuffled anew in each epoch."""

    def __init__(self, *, path: str, field: str = "text") -> None:
        self._path = Path(path)
        self._field = field

    def documents(self, seed: int) -> Iterator[str]:
        texts = [
            self._text(number, line) for number, line in enumerate(_read(self._path).splitlines(), 1) if line.strip()
        ]
        return _epochs(texts, seed, self._path)

    def _text(self, number: int, line: str) -> str:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{self._path}, line {number}: not JSON ({error})") from error
        text = record.get(self._field) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise ValueError(f"{self._path}, line {number}: no string under {self._field!r}; set documents.field")
        return text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"documents.path {str(path)!r} cannot be read ({error.strerror}); give a readable file"
        ) from error


def _epochs(texts: list[str], seed: int, path: Path) -> Iterator[str]:
    if not texts:
        raise ValueError(f"documents.path {str(path)!r} holds no text")
    rng = random.Random(seed)
    while True:
        for i in rng.sample(range(len(texts)), len(texts)):
            yield texts[i]
