"""The asks and streams that this runtime waits for, by call id. Each ends exactly once: reply, error, deadline, loss,
cancel.

Called by the outbound side (opens and awaits), the links and local ports (resolve), the directory (a peer is lost).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.transport.deadlines import Deadline, Deadlines
from headrace.transport.errors import DeadlineExceeded, PeerLost, TransportError

STREAM_WINDOW = 64
"""Items of one stream that may be under way; the consumer grants more as it takes them."""


class Call:
    """One pending ask. `abandon` tells the peer that nobody waits any more."""

    __slots__ = ("abandon", "deadline", "future", "id", "incarnation", "name", "stream")

    def __init__(self, call_id: int, name: str, incarnation: str, future: asyncio.Future[Any]) -> None:
        self.id = call_id
        self.name = name
        self.incarnation = incarnation
        self.future = future
        self.deadline: Deadline | None = None
        self.abandon: Callable[[], None] | None = None
        self.stream: StreamBuffer | None = None


class StreamBuffer:
    """What has arrived of one stream and was not taken yet; bounded by the window that the consumer grants."""

    __slots__ = ("_loop", "_waiter", "end", "grant", "items")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.items: deque[Any] = deque()
        self.end: TransportError | bool = False
        self.grant: Callable[[int], None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        self.items.append(item)
        self._wake()

    def finish(self, end: TransportError | bool = True) -> None:
        if self.end is False:
            self.end = end
            self._wake()

    def wake_after(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Calls:
    def __init__(self, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        self._loop = loop
        self._deadlines = deadlines
        self._calls: dict[int, Call] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._calls)

    def open(self, name: str, incarnation: str, when_s: float, timeout_s: float) -> Call:
        """An ask whose future fails with DeadlineExceeded at `when_s`."""
        call = self._new(name, incarnation)
        call.deadline = self._deadlines.at(when_s, lambda: self._expire(call, timeout_s))
        return call

    def open_stream(self, name: str, incarnation: str) -> Call:
        """A stream; its consumer keeps the deadline of each item."""
        call = self._new(name, incarnation)
        call.stream = StreamBuffer(self._loop)
        return call

    def close(self, call: Call) -> None:
        """The caller is done with it, however it ended. Idempotent."""
        if self._calls.pop(call.id, None) is not None and call.abandon is not None:
            call.abandon()
        if call.deadline is not None:
            call.deadline.cancel()

    def resolve(self, call_id: int, value: Any) -> bool:
        """A reply came. False: nobody waits any more (late, duplicated or forged); it is dropped."""
        call = self._calls.get(call_id)
        if call is None or call.stream is not None:
            return False
        del self._calls[call_id]
        if not call.future.done():
            call.future.set_result(value)
        return True

    def fail(self, call_id: int, error: TransportError) -> bool:
        call = self._calls.pop(call_id, None)
        if call is None:
            return False
        if call.stream is not None:
            call.stream.finish(error)
        elif not call.future.done():
            call.future.set_exception(error)
        return True

    def item(self, call_id: int, value: Any) -> bool:
        call = self._calls.get(call_id)
        if call is None or call.stream is None:
            return False
        call.stream.put(value)
        return True

    def end(self, call_id: int) -> bool:
        call = self._calls.get(call_id)
        if call is None or call.stream is None:
            return False
        del self._calls[call_id]
        call.stream.finish()
        return True

    def lose(self, incarnation: str, reason: str, name: str | None = None) -> None:
        """Fail what waits for that process (or for that one actor of it) with PeerLost."""
        for call in list(self._calls.values()):
            if call.incarnation == incarnation and (name is None or call.name == name):
                self.fail(call.id, PeerLost.of(call.name, incarnation, reason))

    def fail_all(self, error: Callable[[], TransportError]) -> None:
        for call_id in list(self._calls):
            self.fail(call_id, error())

    def sender_of(self, call_id: int) -> str | None:
        """The incarnation that may answer this call."""
        call = self._calls.get(call_id)
        return None if call is None else call.incarnation

    def _new(self, name: str, incarnation: str) -> Call:
        self._last_id += 1
        call = Call(self._last_id, name, incarnation, self._loop.create_future())
        self._calls[call.id] = call
        return call

    def _expire(self, call: Call, timeout_s: float) -> None:
        if not call.future.done():
            call.future.set_exception(
                DeadlineExceeded(f"{call.name} (incarnation {call.incarnation}) did not reply within {timeout_s:g} s")
            )
