"""A bounded mailbox: a deque, a bound, a policy for what exceeds it, and counters. A pure state machine.

`block` holds senders back by withholding credit: the bound is then on what each sending process may have outstanding.
`drop_oldest` evicts the oldest waiting message; `refuse` turns the newest away. A message that a concurrent handler
works on keeps its place until the handler ends, so the bound covers running work too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Overflow = Literal["block", "drop_oldest", "refuse"]
OVERFLOWS: tuple[Overflow, ...] = ("block", "drop_oldest", "refuse")


@dataclass(frozen=True, slots=True)
class MailboxBound:
    """`capacity`: messages waiting or worked on. `window_bytes`: bytes that one sending process may have
    outstanding."""

    capacity: int = 1024
    overflow: Overflow = "block"
    window_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"mailbox capacity must be >= 1, got {self.capacity}")
        if self.overflow not in OVERFLOWS:
            raise ValueError(f"mailbox overflow must be one of {', '.join(OVERFLOWS)}, got {self.overflow!r}")
        if self.window_bytes < 1:
            raise ValueError(f"mailbox window_bytes must be >= 1, got {self.window_bytes}")


@dataclass(slots=True)
class MailboxCounters:
    """received = handled + dropped + refused + cancelled + waiting + running, always."""

    received: int = 0
    handled: int = 0
    dropped: int = 0
    refused: int = 0
    cancelled: int = 0
    peak: int = 0


class Mailbox(Generic[T]):
    """`evictable` says which waiting messages drop_oldest may take out (all, by default)."""

    def __init__(self, bound: MailboxBound, evictable: Callable[[T], bool] = lambda item: True) -> None:
        self.bound = bound
        self._evictable = evictable
        self.counters = MailboxCounters()
        self._waiting: deque[T] = deque()
        self._running = 0

    def __len__(self) -> int:
        return len(self._waiting) + self._running

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> T | None:
        """What has waited longest."""
        return self._waiting[0] if self._waiting else None

    @property
    def has_room(self) -> bool:
        return len(self._waiting) + self._running < self.bound.capacity

    def offer(self, item: T, *, system: bool = False) -> tuple[bool, T | None]:
        """(taken, evicted). `system` messages (PeerDown, …) are always taken and evict nothing."""
        counters = self.counters
        counters.received += 1
        evicted: T | None = None
        num = len(self._waiting) + self._running + 1
        if num > self.bound.capacity and not system and self.bound.overflow != "block":
            evicted = self._evict() if self.bound.overflow == "drop_oldest" else None
            if evicted is None:
                counters.refused += 1
                return False, None
            counters.dropped += 1
            num -= 1
        self._waiting.append(item)
        if num > counters.peak:
            counters.peak = num
        return True, evicted

    def take(self) -> T | None:
        """The oldest waiting message, which is running from now on; None where there is none."""
        if not self._waiting:
            return None
        self._running += 1
        return self._waiting.popleft()

    def done(self, *, cancelled: bool = False) -> None:
        """One running message ended."""
        if self._running < 1:
            raise RuntimeError("mailbox.done() without a running message")
        self._running -= 1
        if cancelled:
            self.counters.cancelled += 1
        else:
            self.counters.handled += 1

    def _evict(self) -> T | None:
        for index, item in enumerate(self._waiting):
            if self._evictable(item):
                del self._waiting[index]
                return item
        return None

    def drain(self) -> list[T]:
        """Take out all that wait (the actor stops); they count as refused."""
        rest = list(self._waiting)
        self._waiting.clear()
        self.counters.refused += len(rest)
        return rest
