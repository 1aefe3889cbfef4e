"""All links of one runtime: who they go to, what leaves by them, and whether what comes by them is in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set
from typing import Any

from headrace.transport.bounded_log import BoundedLog
from headrace.transport.calls import Call, Calls
from headrace.transport.cell import ActorCell
from headrace.transport.clock import Clock
from headrace.transport.errors import CorruptFrame, HandshakeFailed, PeerLost, TransportError
from headrace.transport.frames import Kind, check, split
from headrace.transport.inbound import Inbound
from headrace.transport.link import Link, PeerCredit
from headrace.transport.network import DEFAULT_MAX_MESSAGE_BYTES, Address, Frame, Lane, Port
from headrace.transport.system import ActorRecord

logger = logging.getLogger(__name__)

_MAX_DEAD = 10_000
_MAX_LINKS = 16_384
_STRANGER_S = 60.0


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
        self._calls = calls
        self._limit = max_message_bytes
        self._log = BoundedLog(logger)
        self._inbound = Inbound(calls=calls, cells=cells, limit=max_message_bytes, log=self._log, checked=self._checked)
        self.counters = self._inbound.counters
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, Link] = {}
        self._dead: dict[str, None] = {}
        self._dirty: list[Link] = []
        self._port: Port | None = None

    def attach(self, port: Port) -> None:
        self._port = port
        self._limit = self._inbound.limit = min(self._limit, port.max_message_bytes)

    async def close(self, flush_s: float) -> None:
        self._flush()
        port, self._port = self._port, None
        if port is not None:
            await port.close(flush_s)
        for link in self._links.values():
            link.shared.close()

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

    def tell(self, record: ActorRecord, message: object, *, system: bool = False) -> int:
        """`system` messages of the runtime need no credit. Returns the bytes that it put on the bulk lane."""
        link = self.to(record)
        credit = None if system else link.credit(record)
        return link.post_payload(message, Kind.TELL, record.name, not system, limit=self._limit, credit=credit)

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
            if address is not None and self._port is not None and not self._is_used(address, but=link):
                self._port.forget(address)

    def rest(self, *, members: Set[str]) -> None:
        """Take back the sockets of those who are none of `members` (incarnations) and have been told nothing for long:
        who only asked something and went says no goodbye. One that comes back finds its link as it was."""
        if self._port is None:
            return
        until_s = self._clock.time() - _STRANGER_S
        idle = [
            link
            for link in self._links.values()
            if link.sent_s < until_s and not link.serving and link.peer not in members and link.address is not None
        ]
        for link in idle:
            assert link.address is not None
            if not self._is_used(link.address, but=link):
                self._port.forget(link.address)
        if len(self._links) > _MAX_LINKS // 2:
            for link in idle:
                del self._links[link.peer]
                link.close()

    def _is_used(self, address: Address, *, but: Link) -> bool:
        """Whether another process has bound where that one was."""
        return any(
            link.address is not None and link.address.control == address.control
            for link in self._links.values()
            if link is not but
        )

    def unreachable(self, lane: Lane, endpoint: str, reason: str) -> None:
        """The process at that endpoint will not have this one: what waits for it ends."""
        for link in self._links.values():
            if link.address is not None and link.address.endpoint(lane) == endpoint:
                self._log.warning("unreachable", "%s cannot be reached: %s", endpoint, reason)
                link.new_epoch()  # the numbers go on: a peer that got some of them hears of the gap
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
        try:
            self._receive(self._port, lane, frames)
        except TransportError as error:
            self._inbound.malformed(error)
        except Exception:  # a defect here must cost one message, not what stands behind it
            self._inbound.defect("a message of %d frames could not be read", len(frames))

    def _receive(self, port: Port, lane: Lane, frames: Sequence[Frame]) -> None:
        self.counters.batches += 1
        if len(frames) > 1 and self._inbound.is_oversize(frames):
            return
        source, target, epoch, sequence, envelopes = split(frames[0])
        if target != port.address.incarnation:
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
        link.expected[lane] = sequence + 1
        # What follows may say that nobody waits for this one any more.
        self._inbound.handle(
            link, envelopes, frames[1:], alone=len(envelopes) == 1 and lane is Lane.CONTROL and not port.more
        )

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
