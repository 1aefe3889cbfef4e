"""All links of one runtime: envelopes out to other runtimes, envelopes in to actors and calls. Between the actors and
the network.

Whatever cannot be read is counted and dropped (`counters`); a message that cannot be understood fails its asker by
name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.transport.bounded_log import BoundedLog
from headrace.transport.calls import Call, Calls
from headrace.transport.cell import ActorCell, Delivery
from headrace.transport.clock import Clock
from headrace.transport.codec import decode
from headrace.transport.errors import CorruptFrame, HandshakeFailed, PeerLost, Refused, TransportError, from_wire
from headrace.transport.frames import Kind, check, split
from headrace.transport.link import MAX_WAITING_CALLS, Link, PeerCredit, RemoteDelivery, RemotePort
from headrace.transport.network import DEFAULT_MAX_MESSAGE_BYTES, HEADER_ROOM_BYTES, Address, Frame, Lane, Port
from headrace.transport.system import ActorRecord

logger = logging.getLogger(__name__)

_MAX_DEAD = 10_000
_MAX_LINKS = 16_384
"""What a batch adds to one message of the largest size."""


@dataclass(slots=True)
class LinkCounters:
    """What was dropped, by reason."""

    batches: int = 0
    malformed: int = 0
    oversize: int = 0
    other_incarnation: int = 0
    dead_sender: int = 0
    repeated: int = 0
    lost_batches: int = 0
    late_replies: int = 0
    undelivered: int = 0


class Links:
    def __init__(
        self,
        *,
        clock: Clock,
        calls: Calls,
        cells: dict[str, ActorCell],
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._clock = clock
        self.counters = LinkCounters()
        self._calls = calls
        self._cells = cells
        self._limit = max_message_bytes
        self._log = BoundedLog(logger)
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, Link] = {}
        self._dead: dict[str, None] = {}
        self._dirty: list[Link] = []
        self._port: Port | None = None
        self._alone = False
        self._handlers: dict[int, Callable[[Link, list[Any], Sequence[Frame]], None]] = {
            Kind.HELLO: self._on_hello,
            Kind.ASK: self._on_ask,
            Kind.TELL: self._on_tell,
            Kind.REPLY: self._on_reply,
            Kind.ERROR: self._on_error,
            Kind.ITEM: self._on_item,
            Kind.END: self._on_end,
            Kind.CANCEL: self._on_cancel,
            Kind.GRANT: lambda link, e, frames: link.granted(e[1], e[2], e[3], e[4]),
            Kind.ITEMS: self._on_items,
            Kind.GAP: self._on_gap,
        }

    def attach(self, port: Port) -> None:
        self._port = port

    async def close(self, flush_s: float) -> None:
        self._flush()
        port, self._port = self._port, None
        if port is not None:
            await port.close(flush_s)

    def disown(self) -> None:
        """The port is another process's: nothing goes out, nothing comes in, nothing is closed."""
        self._port = None

    # --- out --------------------------------------------------------------------------------------------------------

    def ask(self, link: Link, call: Call, message: object, credit: PeerCredit | None) -> None:
        """Send an ask (or open a stream). Raises BadMessage's children before anything was sent. Without `credit` it is
        a message of the runtime: the question why an actor does not keep up must reach it."""
        link.post_payload(message, Kind.ASK, call.id, call.name, credit is not None, limit=self._limit, credit=credit)
        call.server = link
        if call.stream is not None:
            call.stream.grant = lambda num: link.post(Kind.ITEMS, call.id, num)

    def tell(self, record: ActorRecord, message: object, *, system: bool = False) -> None:
        """`system` messages of the runtime need no credit."""
        link = self.to(record)
        credit = None if system else link.credit(record)
        link.post_payload(message, Kind.TELL, record.name, not system, limit=self._limit, credit=credit)

    def forget(self, incarnation: str) -> None:
        """That process is dead: nothing goes to it, nothing of it is heard any more."""
        self._dead[incarnation] = None
        while len(self._dead) > _MAX_DEAD:
            self._dead.pop(next(iter(self._dead)))
        link = self._links.pop(incarnation, None)
        if link is not None:
            address = link.address
            link.flush()  # it may hear that it counts as dead
            link.close()
            if address is not None and self._port is not None and not self._is_used(address):
                self._port.forget(address)

    def _is_used(self, address: Address) -> bool:
        """Whether another process has bound where a dead one was."""
        return any(
            link.address is not None and link.address.control == address.control for link in self._links.values()
        )

    def unreachable(self, lane: Lane, endpoint: str, reason: str) -> None:
        """The process at that endpoint will not have this one: what waits for it ends."""
        for link in self._links.values():
            if link.address is not None and link.address.endpoint(lane) == endpoint:
                self._log.warning("unreachable", "%s cannot be reached: %s", endpoint, reason)
                link.lane_failed(lane)
                self._calls.lose(link.peer, f"{endpoint}: {reason}", error=HandshakeFailed)

    def forget_actor(self, name: str, incarnation: str) -> None:
        link = self._links.get(incarnation)
        if link is not None:
            link.forget_actor(name)
        if self._port is not None and incarnation == self._port.address.incarnation:
            for other in self._links.values():
                other.forget_own_actor(name)

    def to(self, record: ActorRecord) -> Link:
        """The way to an actor's process. Raises PeerLost where it is dead."""
        link = self._links.get(record.incarnation)
        if link is None or link.address is None:
            if record.incarnation in self._dead:
                raise PeerLost.of(record.name, record.incarnation, "its process is dead")
            address = self._checked(record.address)
            link = self._link(record.incarnation)
            link.address = address
        return link

    def _checked(self, text: str) -> Address:
        """An address that somebody told. Raises TransportError where no peer can be there."""
        if self._port is None:
            raise TransportError("this runtime's network is closed")
        address = Address.parse(text)
        self._port.check(address)
        return address

    def _link(self, peer: str) -> Link:
        link = self._links.get(peer)
        if link is None:
            if self._port is None:
                raise TransportError("this runtime's network is closed")
            if len(self._links) >= _MAX_LINKS:
                raise TransportError(f"this runtime has links to {_MAX_LINKS} processes, the most that it takes")
            link = self._links[peer] = Link(
                self._port.address, peer, port=self._port, now=self._clock.time, mark_dirty=self._mark_dirty
            )
        return link

    def _mark_dirty(self, link: Link) -> None:
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(link)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            link.flush()

    # --- in ---------------------------------------------------------------------------------------------------------

    def receive(self, lane: Lane, frames: Sequence[Frame]) -> None:
        """One network message. Never raises: hostile bytes are counted."""
        if self._port is None:
            return
        self.counters.batches += 1
        if len(frames) > 1 and sum(map(len, frames)) > self._limit + HEADER_ROOM_BYTES:
            self.counters.oversize += 1
            self._log.warning("oversize", "dropped a message above the limit of %d bytes", self._limit)
            return
        try:
            source, target, epoch, sequence, envelopes = split(frames[0])
            if target != self._port.address.incarnation:
                self.counters.other_incarnation += 1
                return
            if source in self._dead:
                self.counters.dead_sender += 1
                return
            link = self._links.get(source) or self._greet(source, envelopes)
            if (sequence != link.expected[lane] or epoch > link.peer_epoch) and not self._in_order(
                link, lane, epoch, sequence
            ):
                return
        except TransportError as error:
            self._malformed(error)
            return
        link.expected[lane] = sequence + 1
        arrays = frames[1:]
        # What follows may say that nobody waits for this one any more.
        self._alone = len(envelopes) == 1 and lane is Lane.CONTROL and not self._port.more
        for envelope in envelopes:
            try:
                self._handlers[check(envelope)](link, envelope, arrays)
            except TransportError as error:
                self._malformed(error)
            except Exception:  # a defect here must cost one message, not the lane
                self.counters.malformed += 1
                self._log.warning("defect", "an envelope of %s could not be handled", link.peer, exc_info=True)

    def _greet(self, source: str, envelopes: list[Any]) -> Link:
        """The first batch that comes from a peer must say where replies go."""
        if not envelopes or check(envelopes[0]) != Kind.HELLO:
            raise CorruptFrame(f"the first batch of {source!r:.40} has no HELLO")
        address = self._checked(envelopes[0][1])
        if address.incarnation != source:
            raise CorruptFrame("a HELLO must name its own incarnation")
        link = self._link(source)
        link.address = address  # at once: what was lost before this batch is answered with a GAP
        return link

    def _in_order(self, link: Link, lane: Lane, epoch: int, sequence: int) -> bool:
        """Whether the batch counts, though it is not simply the next one: repeated, after a gap, or of a new epoch."""
        expected = link.expected[lane]
        if sequence < expected:
            self.counters.repeated += 1
            return False
        if epoch > link.peer_epoch:
            link.peer_began_epoch(epoch)
        if sequence > expected:
            lost = sequence - expected
            self.counters.lost_batches += lost
            self._log.warning("lost", "%d batches of %s were lost when its connection broke", lost, link.peer)
            self._calls.lose(link.peer, f"its connection broke and {lost} batches of it were lost")
            if link.address is not None:
                link.post(Kind.GAP, int(lane))
        return True

    def _malformed(self, error: TransportError) -> None:
        self.counters.malformed += 1
        self._log.warning("malformed", "dropped what came: %s", error)

    def _on_hello(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        address = self._checked(values[1])
        if address.incarnation != link.peer:
            raise CorruptFrame("a HELLO must name its own incarnation")
        if link.address is None:
            link.address = address

    def _on_ask(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        _, call_id, name, credited, nbytes, payload = values
        if call_id in link.serving or len(link.serving) >= MAX_WAITING_CALLS:
            raise CorruptFrame(f"call {call_id} of {link.peer} is open already")
        if not 0 <= nbytes <= self._limit:
            raise CorruptFrame(f"no message has {nbytes} bytes")
        port = link.serving[call_id] = RemotePort(link, call_id, self._limit)
        cell = self._cells.get(name)
        try:
            if call_id in link.cancelled_early:
                raise Refused("its asker gave up before it came")
            if cell is None:
                raise PeerLost.of(name, link.own.incarnation, "no such actor in its process (any more)")
            message = decode(payload, frames)
        except TransportError as error:
            port.fail(error)
            if cell is not None and credited:
                link.consumed(name, cell.bound, nbytes, link.peer_epoch)
            return
        delivery = (
            RemoteDelivery(message, port, link, name, cell.bound, nbytes) if credited else Delivery(message, port)
        )
        port.delivery = delivery
        cell.deliver(delivery, alone=self._alone)

    def _on_tell(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        _, name, credited, nbytes, payload = values
        if not 0 <= nbytes <= self._limit:
            raise CorruptFrame(f"no message has {nbytes} bytes")
        cell = self._cells.get(name)
        try:
            if cell is None:
                raise PeerLost.of(name, link.own.incarnation, "no such actor in its process (any more)")
            message = decode(payload, frames)
        except TransportError as error:
            self.counters.undelivered += 1
            self._log.warning("undelivered", "a message from %s to %s was dropped: %s", link.peer, name, error)
            if cell is not None and credited:
                link.consumed(name, cell.bound, nbytes, link.peer_epoch)
            return
        if credited:
            cell.deliver(RemoteDelivery(message, None, link, name, cell.bound, nbytes), alone=self._alone)
        else:
            cell.deliver(Delivery(message, None), system=name.startswith("runtime/"))

    def _on_reply(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            try:
                self._calls.resolve(call, decode(values[3], frames))
            except TransportError as error:
                self._calls.fail(call, error)

    def _on_error(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            self._calls.fail(call, from_wire(values[2]))

    def _on_item(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            try:
                self._calls.item(call, decode(values[3], frames))
            except TransportError as error:
                link.abandon(call.id)
                self._calls.fail(call, error)

    def _on_end(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            self._calls.end(call)

    def _call(self, link: Link, call_id: int) -> Call | None:
        """Only the process that was asked may answer."""
        call = self._calls.served_by(call_id, link.peer)
        if call is None:
            self.counters.late_replies += 1
        return call

    def _on_cancel(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        port = link.serving.pop(values[1], None)
        if port is not None:
            port.cancel()
        else:
            link.note_cancelled(values[1])

    def _on_items(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        port = link.serving.get(values[1])
        if port is not None and 0 < values[2] <= 1 << 16:
            port.grant(values[2])

    def _on_gap(self, link: Link, values: list[Any], frames: Sequence[Frame]) -> None:
        """What we had sent may be lost: whoever waits learns it now, and every window is full again."""
        link.new_epoch()
        self._calls.lose(link.peer, "its connection broke and messages to it were lost")
