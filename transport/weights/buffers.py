"""Staging buffers of a sender, whatever memory they are: which one is free, which holds what. Latest only: where none
is free there is none, and nothing waits. Thread-safe. Called by the senders.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Buffer(Protocol):
    @property
    def capacity_bytes(self) -> int: ...

    def is_there(self) -> bool:
        """False where somebody took it away: it is made again."""

    def remove(self) -> None:
        """Give its memory back; readers keep what they hold."""


B = TypeVar("B", bound=Buffer)


@dataclass
class _Place(Generic[B]):
    buffer: B
    version: int | None = None
    filling: bool = False


class BufferPool(Generic[B]):
    """`make(nbytes)` makes a buffer: all `num_buffers` at the first need, so that memory for them is there or is
    missed at once and not in mid-run, and each again where a model outgrew it or somebody took it away."""

    def __init__(self, num_buffers: int, make: Callable[[int], B]) -> None:
        self._num_buffers = num_buffers
        self._make = make
        self._places: list[_Place[B]] = []
        self._last_version = -1
        self._closed = False
        self._lock = threading.Lock()

    @property
    def num_free(self) -> int:
        with self._lock:
            used = sum(place.version is not None or place.filling for place in self._places)
            return self._num_buffers - used

    @contextmanager
    def filling(self, nbytes: int, version: int) -> Iterator[B | None]:
        """A free buffer of at least `nbytes`, None where all are in use. When the block ends it holds `version`; where
        it raises, nothing. Raises ValueError where `version` is not a newer one, or the pool is closed, and what
        `make` raises."""
        with self._lock:
            place = self._take(nbytes, version)
        if place is None:
            yield None
            return
        try:
            yield place.buffer
            place.version = self._last_version = version
        finally:
            place.filling = False

    def release(self, version: int) -> None:
        """Unknown versions are ignored."""
        with self._lock:
            for place in self._places:
                if place.version == version:
                    place.version = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for place in self._places:
                place.buffer.remove()
            self._places.clear()

    def _take(self, nbytes: int, version: int) -> _Place[B] | None:
        if self._closed:
            raise ValueError("this weight sender is closed")
        if version <= self._last_version:
            raise ValueError(f"version must be above the last one staged ({self._last_version}), got {version}")
        free = [place for place in self._places if place.version is None and not place.filling]
        for place in [place for place in free if not place.buffer.is_there()]:
            self._drop(place)
            free.remove(place)
        for place in [place for place in free if place.buffer.capacity_bytes < nbytes]:
            self._drop(place)
            free.remove(place)
        while len(self._places) < self._num_buffers:
            free.append(_Place(self._make(nbytes)))
            self._places.append(free[-1])
        if not free:
            return None
        place = free[0]
        place.filling = True
        return place

    def _drop(self, place: _Place[B]) -> None:
        place.buffer.remove()
        self._places.remove(place)
