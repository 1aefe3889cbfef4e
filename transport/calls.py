"""The asks and streams that this runtime waits for, by call id. Each ends exactly once: reply, error, deadline, loss,
cancel.

Called by the outbound side (opens and awaits), the links and local ports (resolve), the directory (a peer is lost).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from headrace.transport.deadlines import Deadline, Deadlines
from headrace.transport.errors import DeadlineExceeded, PeerLost, TransportError

STREAM_WINDOW = 64
"""Items of one stream that may be under way; the consumer grants more as it takes them."""

_NEVER_S = float("inf")


class Server(Protocol):
    """Where a call is being served: it is told when nobody waits any more."""

    def abandon(self, call_id: int) -> None: ...


class Call(Deadline):
    """One pending ask, an entry of the deadlines at the same time. `server` is set once it has been sent."""

    __slots__ = ("future", "id", "incarnation", "name", "server", "stream", "timeout_s")

    def __init__(
        self, call_id: int, name: str, incarnation: str, future: asyncio.Future[Any], when_s: float, timeout_s: float
    ) -> None:
        self.when_s = when_s
        self.timeout_s = timeout_s
        self.id = call_id
        self.name = name
        self.incarnation = incarnation
        self.future = future
        self.server: Server | None = None
        self.stream: StreamBuffer | None = None

    def ring(self) -> None:
        if not self.future.done():
            self.future.set_exception(
                DeadlineExceeded(
                    f"{self.name} (incarnation {self.incarnation}) did not reply within {self.timeout_s:g} s"
                )
            )


class StreamBuffer:
    """What has arrived of one stream and was not taken yet; bounded by the window that the consumer grants."""

    __slots__ = ("_waiter", "end", "grant", "items")

    def __init__(self) -> None:
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
        self._new_future = loop.create_future
        self._deadlines = deadlines
        self._calls: dict[int, Call] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._calls)

    def open(self, name: str, incarnation: str, when_s: float, timeout_s: float) -> Call:
        """An ask whose future fails with DeadlineExceeded at `when_s`."""
        call_id = self._last_id = self._last_id + 1
        call = self._calls[call_id] = Call(call_id, name, incarnation, self._new_future(), when_s, timeout_s)
        self._deadlines.add(call)
        return call

    def open_stream(self, name: str, incarnation: str) -> Call:
        """A stream; its consumer keeps the deadline of each item."""
        call_id = self._last_id = self._last_id + 1
        call = self._calls[call_id] = Call(call_id, name, incarnation, self._new_future(), _NEVER_S, _NEVER_S)
        call.stream = StreamBuffer()
        return call

    def close(self, call: Call) -> None:
        """The caller is done with it, however it ended. Idempotent."""
        if self._calls.pop(call.id, None) is not None and call.server is not None:
            call.server.abandon(call.id)
        self._deadlines.cancel(call)

    def served_by(self, call_id: int, incarnation: str) -> Call | None:
        """The open call, if that process may answer it. None: nobody waits any more (late, duplicated or forged)."""
        call = self._calls.get(call_id)
        return call if call is not None and call.incarnation == incarnation else None

    def resolve(self, call: Call, value: Any) -> None:
        """A reply came; to a stream it means nothing."""
        if call.stream is None and self._calls.pop(call.id, None) is not None and not call.future.done():
            call.future.set_result(value)

    def fail(self, call: Call, error: TransportError) -> None:
        if self._calls.pop(call.id, None) is None:
            return
        if call.stream is not None:
            call.stream.finish(error)
        elif not call.future.done():
            call.future.set_exception(error)

    def item(self, call: Call, value: Any) -> None:
        if call.stream is not None:
            call.stream.put(value)

    def end(self, call: Call) -> None:
        if call.stream is not None and self._calls.pop(call.id, None) is not None:
            call.stream.finish()

    def lose(self, incarnation: str, reason: str, name: str | None = None, *, error: type[PeerLost] = PeerLost) -> None:
        """Fail what waits for that process (or for that one actor of it) with PeerLost (or that child of it)."""
        for call in list(self._calls.values()):
            if call.incarnation == incarnation and (name is None or call.name == name):
                self.fail(call, error.of(call.name, incarnation, reason))

    def fail_all(self, error: Callable[[], TransportError]) -> None:
        for call in list(self._calls.values()):
            self.fail(call, error())
