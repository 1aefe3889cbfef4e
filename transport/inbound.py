"""What the envelopes of other processes do here: to actors, to calls, to the link that they came by. The counterpart of
`Outbound`, called by `Links` with what is in order.

Whatever cannot be read is counted and dropped; a message that cannot be understood fails its asker by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.transport.blocks import Locator
from headrace.transport.bounded_log import BoundedLog
from headrace.transport.calls import Call, Calls
from headrace.transport.cell import ActorCell
from headrace.transport.codec import decode
from headrace.transport.errors import CorruptFrame, Oversize, PeerLost, Refused, TransportError, from_wire
from headrace.transport.frames import PAYLOADS, Kind, check
from headrace.transport.handling import Delivery
from headrace.transport.link import MAX_WAITING_CALLS, Link, RemoteDelivery, RemotePort
from headrace.transport.network import HEADER_ROOM_BYTES, Address, Frame

_MAX_BYTES = 1 << 48


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


class Inbound:
    """`limit`: of one message, in bytes; `checked` reads an address that a peer told."""

    def __init__(
        self,
        *,
        calls: Calls,
        cells: dict[str, ActorCell],
        limit: int,
        log: BoundedLog,
        checked: Callable[[str], Address],
    ) -> None:
        self.counters = LinkCounters()
        self.limit = limit
        self._calls = calls
        self._cells = cells
        self._log = log
        self._checked = checked
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
            Kind.GRANT: lambda link, e, arrays: link.granted(e[1], e[2], e[3], e[4]),
            Kind.ITEMS: self._on_items,
            Kind.GAP: self._on_gap,
            Kind.OFFER: lambda link, e, arrays: link.shared.offered(e[1], Locator(*e[2:])),
            Kind.MAPPED: lambda link, e, arrays: link.shared.answered(e[1], e[2]),
            Kind.SHARED: self._on_shared,
        }

    def handle(self, link: Link, envelopes: list[Any], arrays: Sequence[Frame], *, alone: bool) -> None:
        """The envelopes of one batch. `alone`: nothing has arrived behind it, which might say that nobody waits for
        this one any more. Never raises."""
        self._alone = alone
        for envelope in envelopes:
            try:
                self._handlers[check(envelope)](link, envelope, arrays)
            except TransportError as error:
                self.malformed(error)
            except Exception:  # a defect here must cost one message, not the lane
                self.defect("an envelope of %s could not be handled", link.peer)

    def malformed(self, error: TransportError) -> None:
        self.counters.malformed += 1
        self._log.warning("malformed", "dropped what came: %s", error)

    def defect(self, text: str, *values: object) -> None:
        """What nobody thought of came: counted as malformed, with the traceback in the log."""
        self.counters.malformed += 1
        self._log.warning("defect", text, *values, exc_info=True)

    def is_oversize(self, frames: Sequence[Frame]) -> bool:
        if sum(map(len, frames)) <= self.limit + HEADER_ROOM_BYTES:
            return False
        self.counters.oversize += 1
        self._log.warning("oversize", "dropped a message above the limit of %d bytes", self.limit)
        return True

    def _on_hello(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        address = self._checked(values[1])
        if address.incarnation != link.peer:
            raise CorruptFrame("a HELLO must name its own incarnation")
        if link.address is None:
            link.address = address

    def _on_ask(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        _, call_id, name, credited, nbytes, payload = values
        if call_id in link.serving or len(link.serving) >= MAX_WAITING_CALLS:
            raise CorruptFrame(f"call {call_id} of {link.peer} is open already")
        if not 0 <= nbytes <= _MAX_BYTES:
            raise CorruptFrame(f"no message has {nbytes} bytes")
        port = link.serving[call_id] = RemotePort(link, call_id, self.limit)
        cell = self._cells.get(name)
        try:
            if call_id in link.cancelled_early:
                raise Refused("its asker gave up before it came")
            if cell is None:
                raise PeerLost.of(name, link.own.incarnation, "no such actor in its process (any more)")
            message = self._decode(nbytes, payload, arrays)
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

    def _on_tell(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        _, name, credited, nbytes, payload = values
        if not 0 <= nbytes <= _MAX_BYTES:
            raise CorruptFrame(f"no message has {nbytes} bytes")
        cell = self._cells.get(name)
        try:
            if cell is None:
                raise PeerLost.of(name, link.own.incarnation, "no such actor in its process (any more)")
            message = self._decode(nbytes, payload, arrays)
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

    def _on_reply(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            try:
                self._calls.resolve(call, self._decode(values[2], values[3], arrays))
            except TransportError as error:
                self._calls.fail(call, error)

    def _on_error(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            self._calls.fail(call, from_wire(values[2]))

    def _on_item(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            try:
                self._calls.item(call, self._decode(values[2], values[3], arrays))
            except TransportError as error:
                link.abandon(call.id)
                self._calls.fail(call, error)

    def _on_end(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        call = self._call(link, values[1])
        if call is not None:
            self._calls.end(call)

    def _decode(self, nbytes: int, payload: Any, arrays: Sequence[Frame]) -> Any:
        if nbytes > self.limit:  # its arrays lie in shared memory: a socket would have been cut off
            self.counters.oversize += 1
            raise Oversize(
                f"a message of {nbytes} bytes exceeds its receiver's limit of {self.limit}; send smaller parts"
            )
        return decode(payload, arrays)

    def _call(self, link: Link, call_id: int) -> Call | None:
        """Only the process that was asked may answer."""
        call = self._calls.served_by(call_id, link.peer)
        if call is None:
            self.counters.late_replies += 1
        return call

    def _on_cancel(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        port = link.serving.pop(values[1], None)
        if port is not None:
            port.cancel()
        else:
            link.note_cancelled(values[1])

    def _on_items(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        port = link.serving.get(values[1])
        if port is not None and 0 < values[2] <= 1 << 16:
            port.grant(values[2])

    def _on_gap(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        """What we had sent may be lost: whoever waits learns it now, and every window is full again."""
        link.new_epoch()
        self._calls.lose(link.peer, "its connection broke and messages to it were lost")

    def _on_shared(self, link: Link, values: list[Any], arrays: Sequence[Frame]) -> None:
        arrays = link.shared.take(values[1])  # whose block is free again where the rest makes no sense
        kind = check(values[2])
        if kind not in PAYLOADS:
            raise CorruptFrame(f"an envelope of kind {kind} has no arrays")
        self._handlers[kind](link, values[2], arrays)
