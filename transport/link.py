"""What one runtime keeps about one other runtime: its address, credits both ways, what it serves for it, what is ready
to leave, and the memory that both share. Called by `Links`."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.transport.blocks import Locator
from headrace.transport.codec import encode, pack
from headrace.transport.credit import ReceiveWindow, SendWindow
from headrace.transport.errors import Oversize, TransportError, describe, to_wire
from headrace.transport.frames import Kind, envelope, header, join, shared
from headrace.transport.handling import Delivery
from headrace.transport.mailbox import MailboxBound
from headrace.transport.network import Address, Frame, Lane, Port
from headrace.transport.outbox import Outbox
from headrace.transport.ports import Window
from headrace.transport.shared_arrays import SharedArrays

if TYPE_CHECKING:
    from headrace.transport.system import ActorRecord

logger = logging.getLogger(__name__)

CONTROL_MAX_BYTES = 64 * 1024
"""Larger messages, and those with array frames, take the bulk lane."""
_CONTROL_BATCH_BYTES = 64 * 1024
_BULK_BATCH_BYTES = 512 * 1024
"""arrays included"""
MAX_WAITING_CALLS = 1 << 20
_MAX_CANCELLED_EARLY = 1024


class PeerCredit(SendWindow):
    """A send window that can be awaited, first come first served."""

    __slots__ = ("_waiters",)

    def __init__(self, window: int, window_bytes: int) -> None:
        super().__init__(window, window_bytes)
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Until there is credit (another sender may still be faster: look again)."""
        while not self.available:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    def wake(self) -> None:
        """Credit came: wake as many as it could serve."""
        free = self.window - self.outstanding if self.available else 0
        while self._waiters and free > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1


class Link:
    def __init__(
        self,
        own: Address,
        peer: str,
        *,
        port: Port,
        now: Callable[[], float],
        mark_dirty: Callable[[Link], None],
    ) -> None:
        self.peer = peer
        self.address: Address | None = None
        self.serving: dict[int, RemotePort] = {}
        """asks and streams of that peer that our handlers work on"""
        self.cancelled_early: dict[int, None] = {}
        """calls that were cancelled on the control lane while they may still be under way on the bulk lane"""
        self.expected = [0, 0]
        self.peer_epoch = 0
        self.own = own
        self._port = port
        self._credits: dict[str, PeerCredit] = {}
        self._received: dict[str, ReceiveWindow] = {}
        self.epoch = 0
        self._sequence = [0, 0]
        self._prefix = header(own.incarnation, peer, 0)
        self._is_known = False
        dirty = functools.partial(mark_dirty, self)
        self._control = Outbox(
            _CONTROL_BATCH_BYTES, now=now, send=functools.partial(self._send, Lane.CONTROL), mark_dirty=dirty
        )
        self._bulk = Outbox(_BULK_BATCH_BYTES, now=now, send=functools.partial(self._send, Lane.BULK), mark_dirty=dirty)
        self.shared = SharedArrays(
            own.incarnation, peer, port.shared_memory_bytes, offer=self._offer_memory, answer=self._answer_memory
        )

    # --- sending ----------------------------------------------------------------------------------------------------

    def post(self, kind: Kind, *values: Any) -> None:
        """Send an envelope without a payload on the control lane."""
        packed = pack((kind, *values))
        self._control.put(packed, len(packed))

    def post_payload(
        self, message: object, kind: Kind, *values: Any, limit: int, credit: PeerCredit | None = None
    ) -> int:
        """Send an envelope with a message; returns the bytes that it puts on the bulk lane. Raises BadMessage's
        children: nothing was sent then.

        What takes the control lane is charged as a message without bytes: its size is bounded by the lane's."""
        fields, frames = encode(message)
        if not frames:
            packed = pack((kind, *values, 0, fields))
            if len(packed) <= CONTROL_MAX_BYTES:
                if len(packed) > limit:
                    raise _oversize(message, len(packed), limit)
                if credit is not None:
                    credit.spend(0)
                self._control.put(packed, len(packed))
                return 0
        payload = pack(fields)
        size = len(payload) + sum(memoryview(frame).nbytes for frame in frames)
        if size > limit:
            raise _oversize(message, size, limit)
        packed = envelope((kind, *values), size, payload)
        place = self.shared.place(frames) if frames else None
        if credit is not None:
            credit.spend(size)
        if place is None:
            self._bulk.flush()
            self._send(Lane.BULK, [packed], frames)
        else:
            self._bulk.put(shared(place, packed), size)
        return size

    def flush(self) -> None:
        """The tick is over: send what was collected."""
        self._control.flush()
        self._bulk.flush()

    @property
    def waiting_bytes(self) -> int:
        """What was collected since the last flush, shared arrays included."""
        return self._control.nbytes + self._bulk.nbytes

    @property
    def sent_s(self) -> float:
        """When something was sent last; −inf before."""
        return max(self._control.last_s, self._bulk.last_s)

    def _offer_memory(self, number: int, memory: Locator) -> None:
        packed = pack((Kind.OFFER, number, memory.process_id, memory.descriptor, memory.capacity_bytes))
        self._bulk.put(packed, len(packed))

    def _answer_memory(self, number: int, is_mapped: bool) -> None:
        self.post(Kind.MAPPED, number, is_mapped)

    def _send(self, lane: Lane, envelopes: list[bytes], frames: list[Frame] | None = None) -> None:
        if self.address is None or not envelopes:
            return
        if not self._is_known:
            self._is_known = any(self.expected)  # who speaks to us knows us; until then any batch may be lost
            if not self._is_known:
                envelopes = [pack([Kind.HELLO, str(self.own)]), *envelopes]
        sequence = self._sequence[lane]
        self._sequence[lane] = sequence + 1
        batch = join(self._prefix, sequence, envelopes)
        self._port.send(self.address, lane, [batch, *frames] if frames else [batch])

    # --- credits ----------------------------------------------------------------------------------------------------

    def credit(self, record: ActorRecord) -> PeerCredit:
        credit = self._credits.get(record.name)
        if credit is None:
            credit = self._credits[record.name] = PeerCredit(record.window, record.window_bytes)
        return credit

    def granted(self, name: str, epoch: int, consumed: int, consumed_bytes: int) -> None:
        credit = self._credits.get(name)
        if credit is not None and epoch == self.epoch:
            credit.grant(consumed, consumed_bytes)
            credit.wake()

    def consumed(self, name: str, bound: MailboxBound, nbytes: int, epoch: int) -> None:
        """One of the peer's messages left the mailbox of our actor `name`."""
        if epoch != self.peer_epoch:
            return
        received = self._received.get(name)
        if received is None:
            received = self._received[name] = ReceiveWindow(bound.capacity, bound.window_bytes)
        if received.consume(nbytes):
            self.post(Kind.GRANT, name, epoch, received.consumed, received.consumed_bytes)

    def abandon(self, call_id: int) -> None:
        """Nobody here waits for that call any more."""
        self.post(Kind.CANCEL, call_id)

    def note_cancelled(self, call_id: int) -> None:
        """The peer waits no longer for a call that is not (or no longer) served here."""
        self.cancelled_early[call_id] = None
        if len(self.cancelled_early) > _MAX_CANCELLED_EARLY:
            del self.cancelled_early[next(iter(self.cancelled_early))]

    def forget_actor(self, name: str) -> None:
        self._credits.pop(name, None)

    def forget_own_actor(self, name: str) -> None:
        """Our actor left; one that takes its name again counts from nothing, as its senders do."""
        self._received.pop(name, None)

    def new_epoch(self) -> None:
        """Messages of ours were lost: every window is full again, older grants mean nothing. Our own grants may have
        been among them: they are totals, and are said again."""
        self.epoch += 1
        self._prefix = header(self.own.incarnation, self.peer, self.epoch)
        for credit in self._credits.values():
            credit.reset()
            credit.wake()
        self.shared.renew()
        for name, received in self._received.items():
            self.post(Kind.GRANT, name, self.peer_epoch, received.consumed, received.consumed_bytes)

    def peer_began_epoch(self, epoch: int) -> None:
        self.peer_epoch = epoch
        self._received.clear()

    def close(self) -> None:
        """The peer is gone: our handlers' work for it is cancelled, its replies go nowhere."""
        self._control.clear()
        self._bulk.clear()
        self.shared.close()
        self.address = None
        for port in list(self.serving.values()):
            port.cancel()
        self.serving.clear()


def _oversize(message: object, size: int, limit: int) -> Oversize:
    name = type(message).__qualname__
    return Oversize(f"a {name} of {size} bytes exceeds the limit of {limit}; send smaller parts")


class RemoteDelivery(Delivery):
    """A message of another process, which gets its credit back when the message has left the mailbox."""

    __slots__ = ("_bound", "_epoch", "_link", "_name", "_nbytes")

    def __init__(
        self, message: Any, port: RemotePort | None, link: Link, name: str, bound: MailboxBound, nbytes: int
    ) -> None:
        super().__init__(message, port)
        self._link = link
        self._name = name
        self._bound = bound
        self._nbytes = nbytes
        self._epoch = link.peer_epoch

    def released(self) -> None:
        self._link.consumed(self._name, self._bound, self._nbytes, self._epoch)


class RemotePort:
    """The way back to an asker in another process."""

    __slots__ = ("_call_id", "_limit", "_link", "_window", "delivery")

    def __init__(self, link: Link, call_id: int, limit: int) -> None:
        self._link = link
        self._call_id = call_id
        self._limit = limit
        self._window: Window | None = None
        self.delivery: Delivery | None = None

    def cancel(self) -> None:
        if self.delivery is not None:
            self.delivery.cancel()

    def reply(self, value: Any) -> None:
        link = self._link
        if not self._close():
            return
        try:
            link.post_payload(value, Kind.REPLY, self._call_id, limit=self._limit)
        except TransportError as error:
            link.post(Kind.ERROR, self._call_id, to_wire(error))
        except Exception as error:  # a defect here must cost one reply, not the actor
            logger.exception("the reply to call %d of %s could not be sent", self._call_id, link.peer)
            link.post(Kind.ERROR, self._call_id, to_wire(TransportError(f"no reply could be sent: {describe(error)}")))

    def fail(self, error: TransportError) -> None:
        if self._close():
            self._link.post(Kind.ERROR, self._call_id, to_wire(error))

    def grant(self, num: int) -> None:
        """The consumer of a stream has room for so many more items."""
        self._stream_window().grant(num)

    async def item(self, value: Any) -> None:
        await self._stream_window().take()
        self._link.post_payload(value, Kind.ITEM, self._call_id, limit=self._limit)

    def end(self) -> None:
        if self._close():
            self._link.post(Kind.END, self._call_id)

    def _close(self) -> bool:
        """Whether the call was still open. Its id may be another call's by now, if the peer uses one twice."""
        self.delivery = None  # which holds this port: large arrays shall not wait for the collector of cycles
        if self._link.serving.get(self._call_id) is not self:
            return False
        del self._link.serving[self._call_id]
        return True

    def _stream_window(self) -> Window:
        if self._window is None:
            self._window = Window()
        return self._window
