"""A place in any source's sequence. Called by the stages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from headrace.actors.learner.documents.protocol import Document, DocumentCursor, DocumentSource


def cursor_of(source: DocumentSource, seed: int) -> DocumentCursor:
    """The source's own cursor where it has one."""
    documents = source.documents(seed)
    return documents if isinstance(documents, DocumentCursor) else Replayed(documents)


class Replayed:
    """Counts what it gives; is resumed by passing over as many. For sources that are functions of their seed."""

    def __init__(self, documents: Iterator[Document]) -> None:
        self._documents = documents
        self._given = 0

    def __iter__(self) -> Iterator[Document]:
        return self

    def __next__(self) -> Document:
        document = next(self._documents)
        self._given += 1
        return document

    def state_dict(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of a fresh one. Raises ValueError for the state of another kind of source."""
        if set(state) != {"given"}:
            raise ValueError(f"this source counts what it gives, got the state of another kind: {sorted(state)}")
        for _ in itertools.islice(self._documents, state["given"] - self._given):
            pass
        self._given = state["given"]
