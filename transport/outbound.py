"""Ask, tell and stream: find the peer, get credit, send, wait. Peers of this process are reached without the codec.

Called by contexts. Every wait has a deadline and ends early when the peer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from headrace.transport.activity import Activity
from headrace.transport.calls import Call, Calls
from headrace.transport.cell import ActorCell
from headrace.transport.clock import Clock
from headrace.transport.deadlines import Deadlines, check_timeout
from headrace.transport.directory import role_of
from headrace.transport.errors import DeadlineExceeded, PeerLost, TransportError
from headrace.transport.handling import Delivery
from headrace.transport.links import Links
from headrace.transport.message import type_of
from headrace.transport.names import Names
from headrace.transport.ports import LocalPort
from headrace.transport.system import QUERIES, ActivityQuery, ActorRecord

Copy = Callable[[Any], Any]

_TURN_BYTES = 256 * 1024
"""Of large messages that are sent in one turn of the event loop: others have theirs before the next one is copied."""


class Outbound:
    def __init__(
        self,
        *,
        incarnation: str,
        clock: Clock,
        deadlines: Deadlines,
        names: Names,
        calls: Calls,
        links: Links,
        cells: dict[str, ActorCell],
        copy: Copy | None,
    ) -> None:
        self._incarnation = incarnation
        self._clock = clock
        self._deadlines = deadlines
        self._names = names
        self._calls = calls
        self._links = links
        self._cells = cells
        self._copy = copy
        self._loop = asyncio.get_running_loop()
        self._bytes_this_turn = 0
        self.tells_dropped = 0
        """tell_soon messages that had no peer or no credit"""
        self.stopped: Callable[[], TransportError] | None = None

    async def ask(self, activity: Activity, name: str, message: object, timeout_s: float) -> Any:
        check_timeout(timeout_s)
        now_s = self._clock.time()
        kind = type(message)
        ticket = activity.block(role_of(name), name, kind)
        try:
            record = self._names.state.find(name) or await self._find(name, timeout_s)
            call = self._calls.open(name, record.incarnation, now_s + timeout_s, timeout_s)
            future = call.future
            try:
                if self.stopped is not None:
                    raise self.stopped()
                if record.incarnation == self._incarnation:
                    await self._ask_here(call, message)
                else:
                    link = self._links.to(record)
                    credit = None if kind in QUERIES else link.credit(record)
                    # Looked at again: another may have been faster.
                    while credit is not None and not credit.available and not future.done():
                        await self._or_end(future, credit.wait())
                    if not future.done():
                        self._links.ask(link, call, message, credit)
                return await future
            except BaseException:
                if future.done() and not future.cancelled():
                    future.exception()  # an error that nobody awaits any more is no warning
                raise
            finally:
                self._calls.close(call)
        finally:
            activity.unblock(ticket)

    async def tell(self, activity: Activity, name: str, message: object, timeout_s: float) -> None:
        check_timeout(timeout_s)
        record = self._names.state.find(name)
        if record is None or not self._has_room(record):
            ticket = activity.block(role_of(name), name, type(message))
            try:
                record = await self._wait_for_room(name, timeout_s)
            finally:
                activity.unblock(ticket)
        self._bytes_this_turn += self._send_tell(record, message)
        if self._bytes_this_turn >= _TURN_BYTES:
            self._bytes_this_turn = 0
            await asyncio.sleep(0)

    def tell_soon(self, name: str, message: object) -> bool:
        record = self._names.state.find(name)
        if record is None or not self._has_room(record):
            self.tells_dropped += 1
            return False
        self._send_tell(record, message)
        return True

    def takes(self, name: str) -> bool:
        """Whether that actor has room for a message of this process; True where there is no such actor."""
        record = self._names.state.find(name)
        return record is None or self._has_room(record)

    async def stream(
        self, activity: Activity, name: str, message: object, timeout_s: float
    ) -> AsyncGenerator[Any, None]:
        check_timeout(timeout_s)
        ticket = activity.block(role_of(name), name, type(message))
        try:
            record = await self._wait_for_room(name, timeout_s)
        finally:
            activity.unblock(ticket)
        call = self._calls.open_stream(name, record.incarnation)
        buffer = call.stream
        assert buffer is not None
        try:
            if record.incarnation == self._incarnation:
                self._deliver_here(call, message)
            else:
                link = self._links.to(record)
                self._links.ask(link, call, message, link.credit(record))
            while True:
                if not buffer.items:
                    if isinstance(buffer.end, TransportError):
                        raise buffer.end
                    if buffer.end:
                        return
                    await self._arrival(activity, call, timeout_s)
                    continue
                item = buffer.items.popleft()
                if buffer.grant is not None:
                    buffer.grant(1)
                yield item
        finally:
            self._calls.close(call)

    # --- within this process ----------------------------------------------------------------------------------------

    async def _ask_here(self, call: Call, message: object) -> None:
        cell = self._cells.get(call.name)
        if cell is not None and not cell.has_room and type(message) not in QUERIES:
            await self._until_admitted(cell, call)
            if call.future.done():
                return
        self._deliver_here(call, message)

    def _deliver_here(self, call: Call, message: object) -> None:
        type_of(type(message))
        cell = self._cells.get(call.name)
        if cell is None:
            raise PeerLost.of(call.name, self._incarnation, "it has left this process")
        port = LocalPort(self._calls, call, self._copy)
        if call.stream is not None:
            call.stream.grant = port.window.grant
        delivery = Delivery(message if self._copy is None else self._copy(message), port)
        call.server = delivery
        cell.deliver(delivery)

    def _has_room(self, record: ActorRecord) -> bool:
        if record.incarnation == self._incarnation:
            cell = self._cells.get(record.name)
            return cell is None or cell.has_room
        return self._links.to(record).credit(record).available

    def _send_tell(self, record: ActorRecord, message: object) -> int:
        """Returns the bytes that it put on the bulk lane."""
        if self.stopped is not None:
            raise self.stopped()
        if record.incarnation != self._incarnation:
            return self._links.tell(record, message)
        type_of(type(message))
        cell = self._cells.get(record.name)
        if cell is None:
            raise PeerLost.of(record.name, self._incarnation, "it has left this process")
        cell.deliver(Delivery(message if self._copy is None else self._copy(message), None))
        return 0

    async def _find(self, name: str, timeout_s: float) -> ActorRecord:
        if self.stopped is not None:
            raise self.stopped()
        return await self._names.find(name, timeout_s)

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def _wait_for_room(self, name: str, timeout_s: float) -> ActorRecord:
        """The peer's record once it is there and takes a message."""
        when_s = self._clock.time() + timeout_s
        record = await self._find(name, timeout_s)
        call = self._calls.open(name, record.incarnation, when_s, timeout_s)
        try:
            if record.incarnation == self._incarnation:
                cell = self._cells.get(name)
                if cell is not None and not cell.has_room:
                    await self._until_admitted(cell, call)
            else:
                credit = self._links.to(record).credit(record)
                while not credit.available and not call.future.done():
                    await self._or_end(call.future, credit.wait())
            if call.future.done():
                await self._explain(call, timeout_s)
            return record
        finally:
            self._calls.close(call)

    async def _until_admitted(self, cell: ActorCell, call: Call) -> None:
        """Wait for a place in a mailbox of this process, first come first served, or for the call's end."""
        while True:
            await self._or_end(call.future, cell.room())
            if cell.admits or call.future.done():
                return

    async def _explain(self, call: Call, timeout_s: float) -> None:
        try:
            await call.future
        except DeadlineExceeded:
            if call.incarnation != self._incarnation:
                self._look_for_a_gap(call)
            raise DeadlineExceeded(
                f"{call.name} granted no credit within {timeout_s:g} s: its mailbox is full and it is not keeping up"
            ) from None

    def _look_for_a_gap(self, call: Call) -> None:
        """Its grants may have been lost with a connection, which only a later message from there shows: have it send
        one. Nobody waits for the answer."""
        record = self._names.state.find(call.name)
        if record is not None and record.incarnation == call.incarnation:
            probe = self._calls.open(call.name, call.incarnation, self._clock.time() + 1.0, 1.0)
            self._links.ask(self._links.to(record), probe, ActivityQuery(), None)
            self._calls.close(probe)

    async def _or_end(self, future: asyncio.Future[Any], wait: Any) -> None:
        """Await `wait`, or stop where `future` ends first (deadline, peer lost)."""
        task = self._loop.create_task(wait)
        try:
            await asyncio.wait((task, future), return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()

    async def _arrival(self, activity: Activity, call: Call, timeout_s: float) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        buffer = call.stream
        assert buffer is not None
        buffer.wake_after(waiter)

        def expire() -> None:
            buffer.finish(DeadlineExceeded(f"{call.name} sent no item within {timeout_s:g} s"))

        deadline = self._deadlines.at(self._clock.time() + timeout_s, expire)
        ticket = activity.block(role_of(call.name), call.name, "the next item of a stream")
        try:
            await waiter
        finally:
            self._deadlines.cancel(deadline)
            activity.unblock(ticket)
