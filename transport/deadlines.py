"""All deadlines of one runtime in one heap behind one loop timer: a tenth of a microsecond where `wait_for` takes five.

Cancelled entries stay in the heap until they surface or outnumber the live ones. Called by the runtime only.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from headrace.transport.clock import Clock

_MIN_GARBAGE = 512


class Deadline:
    """One entry. `cancel()` is idempotent."""

    __slots__ = ("_owner", "callback", "sequence", "when_s")

    def __init__(self, owner: Deadlines, when_s: float, sequence: int, callback: Callable[[], None]) -> None:
        self._owner = owner
        self.when_s = when_s
        self.sequence = sequence
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Deadline) -> bool:
        return (self.when_s, self.sequence) < (other.when_s, other.sequence)

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._owner._note_cancelled()


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._heap: list[Deadline] = []
        self._sequence = 0
        self._garbage = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_when_s = float("inf")

    def __len__(self) -> int:
        return len(self._heap) - self._garbage

    def at(self, when_s: float, callback: Callable[[], None]) -> Deadline:
        """Call `callback` once at clock time `when_s` unless cancelled before."""
        self._sequence += 1
        entry = Deadline(self, when_s, self._sequence, callback)
        heapq.heappush(self._heap, entry)
        if when_s < self._timer_when_s:
            self._arm()
        return entry

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()
        self._garbage = 0

    def _note_cancelled(self) -> None:
        self._garbage += 1
        if self._garbage > _MIN_GARBAGE and self._garbage * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry.callback is not None]
            heapq.heapify(self._heap)
            self._garbage = 0
        if self._garbage >= len(self._heap) and self._timer is not None:
            # Nothing is awaited any more: a timer left behind would keep a virtual clock jumping.
            self.close()
            self._timer_when_s = float("inf")

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_when_s = self._heap[0].when_s
        self._timer = self._loop.call_later(max(0.0, self._timer_when_s - self._clock.time()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._timer_when_s = float("inf")
        now_s = self._clock.time()
        # A loop timer may ring a little early by the clock's count; those entries wait for the next ring.
        while self._heap and (self._heap[0].when_s <= now_s + 1e-4 or self._heap[0].callback is None):
            entry = heapq.heappop(self._heap)
            callback, entry.callback = entry.callback, None
            if callback is None:
                self._garbage -= 1
            else:
                callback()
        if self._heap and self._timer is None:
            self._arm()
