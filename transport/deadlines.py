"""All deadlines of one runtime behind one loop timer: adding and cancelling cost a dictionary entry each.

The timer is set to the earliest deadline when it is added and not moved when that one is cancelled; when it rings, one
look at all entries finds what is due and when to ring next. Most deadlines are cancelled long before they are due, so
the look is rare. Called by the runtime only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.transport.clock import Clock

_EARLY_S = 1e-4
"""A loop timer may ring a little early by the clock's count."""


def check_timeout(timeout_s: float) -> None:
    """Raise ValueError for what no deadline can be made of. inf is for ever, 0 and less is now."""
    if timeout_s != timeout_s:
        raise ValueError("timeout_s must be a number of seconds, got nan")


class Deadline:
    """One entry: `ring` is called once at clock time `when_s` unless it is cancelled before."""

    __slots__ = ("when_s",)

    def __init__(self, when_s: float) -> None:
        self.when_s = when_s

    def ring(self) -> None:
        raise NotImplementedError


class _Callback(Deadline):
    __slots__ = ("ring",)

    def __init__(self, when_s: float, callback: Callable[[], None]) -> None:
        self.when_s = when_s
        self.ring = callback  # type: ignore[method-assign]


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._entries: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_when_s = float("inf")

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Deadline) -> None:
        self._entries[entry] = None
        if entry.when_s < self._timer_when_s:
            self._arm(entry.when_s)

    def at(self, when_s: float, callback: Callable[[], None]) -> Deadline:
        """Call `callback` once at clock time `when_s` unless cancelled before."""
        entry = _Callback(when_s, callback)
        self.add(entry)
        return entry

    def cancel(self, entry: Deadline) -> None:
        """Idempotent."""
        self._entries.pop(entry, None)

    def close(self) -> None:
        self._entries.clear()
        self._timer_when_s = float("inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_when_s = when_s
        self._timer = self._loop.call_later(max(0.0, when_s - self._clock.time()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._timer_when_s = float("inf")
        until_s = self._clock.time() + _EARLY_S
        due = sorted((entry for entry in self._entries if entry.when_s <= until_s), key=lambda entry: entry.when_s)
        for entry in due:
            if entry in self._entries:  # one that rang before may have cancelled it
                del self._entries[entry]
                entry.ring()
        if self._entries:
            next_s = min(entry.when_s for entry in self._entries)
            if next_s < self._timer_when_s:
                self._arm(next_s)
