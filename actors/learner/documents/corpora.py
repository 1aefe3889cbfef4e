"""Finite corpora as document sources: text files, JSON lines, parquet, data sets of the hub. Nothing is loaded whole.

A share of the documents is held out, chosen by a hash of the document alone: copies of it are on one side, in whatever
file and order they lie, and the choice outlasts restarts and other seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from headrace.actors.learner.documents.protocol import Document
from headrace.actors.learner.documents.shuffled import ShuffledRecords
from headrace.actors.records import HubRecords, JsonLinesRecords, ParquetRecords, Paths, Records, TextRecords
from headrace.actors.tasks.seeds import derived_fraction


class Corpus:
    """What the corpora have in common. shuffle_buffer: records that are in memory and change places. held_out_fraction:
    of the documents, kept out of training for the held-out loss; held_out_seed: which."""

    def __init__(
        self, records: Records, *, shuffle_buffer: int, held_out_fraction: float, held_out_seed: int, settings: str = ""
    ) -> None:
        if shuffle_buffer < 1:
            raise ValueError(f"documents.shuffle_buffer must be >= 1, got {shuffle_buffer}; 1 keeps the files' order")
        if not 0 <= held_out_fraction < 1:
            raise ValueError(
                f"documents.held_out_fraction must be in [0, 1), got {held_out_fraction}; 0 holds nothing out"
            )
        self.records = records
        self._shuffle_buffer = shuffle_buffer
        self._held_out_fraction = held_out_fraction
        self._held_out_seed = held_out_seed
        self._settings = settings

    def document(self, record: Any) -> Document:
        """The document of a record. Raises ValueError where it has none."""
        raise NotImplementedError

    def identity_of(self, record: Any) -> str:
        """What copies have in common: they are held out together."""
        document = self.document(record)
        return document if isinstance(document, str) else json.dumps(document, sort_keys=True, default=str)

    def documents(self, seed: int) -> ShuffledRecords:
        return ShuffledRecords(
            self.records, take=self._training, seed=seed, buffer=self._shuffle_buffer, identity=self._identity()
        )

    def held_out(self) -> Iterator[Document]:
        """What training never sees, in the files' order; ends. Reads the corpus once, as far as it is asked."""
        if not self._held_out_fraction:
            return
        for part in self.records.parts():
            for record, _ in self.records.read(part):
                if self._is_held_out(record):
                    yield self.document(record)

    def _training(self, record: Any) -> Document | None:
        return None if self._is_held_out(record) else self.document(record)

    def _is_held_out(self, record: Any) -> bool:
        if not self._held_out_fraction:
            return False
        digest = hashlib.blake2b(self.identity_of(record).encode(errors="surrogatepass"), digest_size=16).hexdigest()
        return derived_fraction("held out", self._held_out_seed, digest) < self._held_out_fraction

    def _identity(self) -> str:
        settings = [self._settings, self._shuffle_buffer, self._held_out_fraction, self._held_out_seed]
        described = json.dumps([type(self).__name__, self.records.fingerprint(), settings])
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


class TextFiles(Corpus):
    """The parts of UTF-8 files, cut at `separator` (a newline by default). paths: a file or a glob, or several."""

    def __init__(
        self,
        *,
        paths: Paths,
        separator: str = "\n",
        shuffle_buffer: int = 10_000,
        held_out_fraction: float = 0.01,
        held_out_seed: int = 1,
    ) -> None:
        super().__init__(
            TextRecords(paths, separator=separator),
            shuffle_buffer=shuffle_buffer,
            held_out_fraction=held_out_fraction,
            held_out_seed=held_out_seed,
            settings=separator,
        )

    def document(self, record: Any) -> str:
        return str(record)


class _Fields(Corpus):
    """Records with fields. `field`: of the text; None gives the whole record (conversations)."""

    _field: str | None

    def document(self, record: Any) -> Document:
        if self._field is None:
            found: dict[str, Any] = record
            return found
        text = record.get(self._field)
        if not isinstance(text, str):
            raise ValueError(
                f"a record has no string under {self._field!r}; it has {sorted(record)}; set documents.field (null for "
                "whole records)"
            )
        return text


class JsonLines(_Fields):
    """The text under `field` of each line of JSON-lines files; `field` null: the whole object. paths: a file or a glob,
    or several."""

    def __init__(
        self,
        *,
        paths: Paths,
        field: str | None = "text",
        shuffle_buffer: int = 10_000,
        held_out_fraction: float = 0.01,
        held_out_seed: int = 1,
    ) -> None:
        self._field = field
        super().__init__(
            JsonLinesRecords(paths),
            shuffle_buffer=shuffle_buffer,
            held_out_fraction=held_out_fraction,
            held_out_seed=held_out_seed,
            settings=repr(field),
        )


class Parquet(_Fields):
    """The text in the column `field` of parquet files; `field` null: all columns of a row. Needs pyarrow
    (headrace[data])."""

    def __init__(
        self,
        *,
        paths: Paths,
        field: str | None = "text",
        shuffle_buffer: int = 10_000,
        held_out_fraction: float = 0.01,
        held_out_seed: int = 1,
    ) -> None:
        self._field = field
        super().__init__(
            ParquetRecords(paths, columns=None if field is None else [field]),
            shuffle_buffer=shuffle_buffer,
            held_out_fraction=held_out_fraction,
            held_out_seed=held_out_seed,
            settings=repr(field),
        )


class HubDataset(_Fields):
    """The text in the column `field` of a data set: a name of the Hugging Face hub, which is downloaded at first use
    and then read from its cache, or a local folder. `field` null: all columns. Needs datasets (headrace[data])."""

    def __init__(
        self,
        *,
        name: str,
        config: str | None = None,
        split: str = "train",
        revision: str | None = None,
        field: str | None = "text",
        shuffle_buffer: int = 10_000,
        held_out_fraction: float = 0.01,
        held_out_seed: int = 1,
    ) -> None:
        self._field = field
        super().__init__(
            HubRecords(name, config=config, split=split, revision=revision),
            shuffle_buffer=shuffle_buffer,
            held_out_fraction=held_out_fraction,
            held_out_seed=held_out_seed,
            settings=repr(field),
        )
