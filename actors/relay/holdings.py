"""Which versions a host must keep, and which it may forget. A pure state machine: no bytes, no clock.

A reader needs the version that it asked for last, until it says that it has loaded it, asks for another, or is gone.
The newest version stays for whoever comes next, and as the base of the next delta.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Holdings:
    def __init__(self) -> None:
        self._needs: dict[str, int] = {}
        self._held: set[int] = set()
        self._pinned: set[int] = set()

    @property
    def newest(self) -> int | None:
        """The newest version that is held whole."""
        return max(self._held, default=None)

    def need(self, reader: str, version: int) -> None:
        self._needs[reader] = version

    def done(self, reader: str, version: int | None = None) -> None:
        """It loaded what it asked for, gave it up, or is gone. With a `version`: unless it needs another one now."""
        if version is None or self._needs.get(reader) == version:
            self._needs.pop(reader, None)

    def needed(self, version: int) -> bool:
        """Whether a reader waits for it or reads it."""
        return version in self._needs.values()

    def hold(self, version: int) -> None:
        """It is here, whole."""
        self._held.add(version)

    @contextmanager
    def pinned(self, version: int) -> Iterator[None]:
        """A delta is being decoded upon it."""
        self._pinned.add(version)
        try:
            yield
        finally:
            self._pinned.discard(version)

    def take_free(self, *, keep_newest: bool = True) -> list[int]:
        """Versions that nobody needs any more; they are forgotten here."""
        kept = {*self._pinned, *self._needs.values()} | ({self.newest} if keep_newest else set())
        free = [version for version in sorted(self._held) if version not in kept]
        self._held.difference_update(free)
        return free
