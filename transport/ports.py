"""The way back from a handler to whoever asked: one interface, for an asker in this process and for one elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from headrace.transport.calls import STREAM_WINDOW, Call, Calls
from headrace.transport.errors import DeadlineExceeded, TransportError


class ReplyPort(Protocol):
    """Exactly one of `reply`, `fail`, `end` is called, once. None of them waits or raises TransportError."""

    def reply(self, value: Any) -> None: ...

    def fail(self, error: TransportError) -> None: ...

    async def item(self, value: Any) -> None:
        """One item of a stream; waits until the consumer has granted room."""

    def end(self) -> None: ...


ROOM_TIMEOUT_S = 600.0
"""A consumer that takes nothing of a full window for so long has lost interest without a word."""


class Window:
    """The producer's side of a stream's flow control: `take` waits where `granted` items are under way. Raises
    DeadlineExceeded."""

    def __init__(self, size: int = STREAM_WINDOW) -> None:
        self._left = size
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> None:
        while self._left < 1:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(ROOM_TIMEOUT_S):
                    await self._waiter
            except TimeoutError:
                raise DeadlineExceeded(
                    f"the consumer of this stream has taken none of its items for {ROOM_TIMEOUT_S:g} s"
                ) from None
        self._left -= 1

    def grant(self, num: int) -> None:
        self._left += num
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class LocalPort:
    """To an asker in this process. `copy` is the codec round trip under encode_local, or the identity."""

    def __init__(self, calls: Calls, call: Call, copy: Callable[[Any], Any] | None) -> None:
        self._calls = calls
        self._call = call
        self._copy = copy
        self.window = Window()

    def reply(self, value: Any) -> None:
        try:
            value = value if self._copy is None else self._copy(value)
        except TransportError as error:
            self._calls.fail(self._call, error)
        else:
            self._calls.resolve(self._call, value)

    def fail(self, error: TransportError) -> None:
        self._calls.fail(self._call, error)

    async def item(self, value: Any) -> None:
        await self.window.take()
        self._calls.item(self._call, value if self._copy is None else self._copy(value))

    def end(self) -> None:
        self._calls.end(self._call)
