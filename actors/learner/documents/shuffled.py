"""The order in which the documents of a finite corpus come: epochs, blocks, and a place that can be kept.

    epoch   every record once; parts in an order of the seed and the epoch
    block   `buffer` records read one after another, which come in an order of the seed, the epoch and the block

Only a block is in memory. A place is where its block begins and how much of it was given: to go on there, the block is
read again. Blocks begin elsewhere in each epoch (the first is shorter), so that neighbours of one epoch are strangers
in the next. Holds no format and no filter of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from headrace.actors.learner.documents.protocol import Document
from headrace.actors.records import Records
from headrace.actors.tasks.seeds import derived_fraction, derived_seed

logger = logging.getLogger(__name__)


class ShuffledRecords:
    """A DocumentCursor. `take(record)` is the document of a record, or None where it does not belong here (held out).
    `identity`: of the corpus and its settings; another one in a state means another corpus."""

    def __init__(
        self, records: Records, *, take: Callable[[Any], Document | None], seed: int, buffer: int, identity: str
    ) -> None:
        self._records = records
        self._take = take
        self._seed = seed
        self._buffer = buffer
        self._identity = identity
        self._restart()

    def _restart(self) -> None:
        self._epoch = 0
        self._epoch_records: int | None = None  # of a whole epoch, once there was one
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._block_number = -1
        self._block_place: tuple[int, int] = (0, 0)  # (part, position) where the block begins
        self._place: tuple[int, int] = (0, 0)  # where the next one does
        self._records_before = 0
        self._taken = 0
        self._block: list[Any] = []
        self._next = 0
        self._reader: Iterator[tuple[Any, int]] | None = None
        self._parts: list[str] = []

    def __iter__(self) -> Iterator[Document]:
        return self

    def __next__(self) -> Document:
        """Raises ValueError where a whole epoch holds nothing."""
        while True:
            while self._next < len(self._block):
                document = self._take(self._block[self._next])
                self._next += 1
                if document is not None:
                    self._taken += 1
                    return document
            self._next_block()

    def state_dict(self) -> dict[str, Any]:
        return {
            "identity": self._identity,
            "seed": self._seed,
            "epoch": self._epoch,
            "epoch_records": self._epoch_records,
            "block": self._block_number,
            "place": list(self._block_place),
            "records_before": self._records_before,
            "given": self._next,
            "taken": self._taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A state of another corpus, or of another seed, begins anew, with a warning."""
        if state.get("identity") != self._identity or state.get("seed") != self._seed:
            logger.warning(
                "the documents, or how they are shuffled, have changed since this place was kept (%s, seed %s; now %s, "
                "seed %s): they begin anew",
                state.get("identity"),
                state.get("seed"),
                self._identity,
                self._seed,
            )
            self._restart()
            return
        self._epoch, self._epoch_records = state["epoch"], state["epoch_records"]
        self._begin_epoch()
        if state["block"] >= 0:
            self._block_number = state["block"] - 1
            self._place = (state["place"][0], state["place"][1])
            self._records_before = state["records_before"]
            self._next_block()
            self._next, self._taken = state["given"], state["taken"]

    # --- blocks -----------------------------------------------------------------------------------------------------

    def _next_block(self) -> None:
        """The next one that holds a record, in the next epoch where this one is over."""
        self._records_before += len(self._block)
        self._block_number += 1
        self._block_place = self._place
        size = self._block_size()
        self._block = self._read(size)
        self._next = 0
        Random(derived_seed("block", self._seed, self._epoch, self._block_number)).shuffle(self._block)
        if not self._block:
            self._end_epoch()

    def _block_size(self) -> int:
        if self._block_number or self._epoch_records is None or self._epoch_records <= self._buffer:
            return self._buffer
        return 1 + int(derived_fraction("first block", self._seed, self._epoch) * (self._buffer - 1))

    def _end_epoch(self) -> None:
        if not self._taken:
            raise ValueError(
                f"a whole epoch of {self._records_before} records holds no document; lower held_out_fraction, or give "
                "other files"
            )
        if self._epoch_records not in (None, self._records_before):
            logger.warning("the corpus had %s records, now %s", self._epoch_records, self._records_before)
        self._epoch_records = self._records_before
        self._epoch += 1
        self._begin_epoch()

    def _read(self, size: int) -> list[Any]:
        if not self._parts:
            self._parts = self._records.parts()
            Random(derived_seed("parts", self._seed, self._epoch)).shuffle(self._parts)
        block: list[Any] = []
        number, position = self._place
        while number < len(self._parts) and len(block) < size:
            if self._reader is None:
                self._reader = self._records.read(self._parts[number], position)
            for record, behind in self._reader:
                block.append(record)
                position = behind
                if len(block) == size:
                    break
            else:
                number, position, self._reader = number + 1, 0, None
        self._place = (number, position)
        return block
