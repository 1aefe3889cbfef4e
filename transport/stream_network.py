"""The network of one host over unix streams of the event loop: a quarter of ZeroMQ's latency, since no thread stands
between a socket and the loop.

As over ZeroMQ, a connection carries one direction of one lane: each port listens on two paths in a fresh folder of mode
0700 and connects to those it sends to. Without ZeroMQ there is no reconnecting: what was queued for a peer whose
connection broke is lost, the sequence numbers of the links tell it, and the next message opens a new one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from headrace.transport.errors import CorruptFrame, TransportError
from headrace.transport.framing import MessageReader, pack_message
from headrace.transport.network import (
    CONTROL_MAX_FRAME_BYTES,
    DEFAULT_MAX_MESSAGE_BYTES,
    HEADER_ROOM_BYTES,
    SHARED_MEMORY_BYTES,
    Address,
    Frame,
    Lane,
    Receive,
    Unreachable,
    checked_shared_memory,
    nobody_cares,
)
from headrace.transport.socket_files import checked_length, may_be_peer

logger = logging.getLogger(__name__)

_SCHEME = "unix://"
_FORGET_AFTER_S = 0.2
_BACKLOG = 1024


class StreamNetwork:
    """`folder`: where the fresh folder of the sockets is made, and below which those of peers lie; the system's
    temporary folder by default. `max_message_bytes`: of what is received in one frame; a peer that sends more is cut
    off. `heartbeat_s`: how often a runtime tells the directory that it lives. `shared_memory_bytes`: what a sender
    shares with each receiver for large arrays; 0: they travel through the sockets. Raises ValueError."""

    def __init__(
        self,
        *,
        folder: str | None = None,
        heartbeat_s: float | None = 1.0,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        shared_memory_bytes: int = SHARED_MEMORY_BYTES,
    ) -> None:
        if heartbeat_s is not None and heartbeat_s <= 0:
            raise ValueError(f"heartbeat_s must be > 0 or None, got {heartbeat_s}")
        self.heartbeat_s = heartbeat_s
        self._shared_memory_bytes = checked_shared_memory(shared_memory_bytes)
        self._folder = folder or tempfile.gettempdir()
        self._max_message_bytes = max_message_bytes
        self._limits = {Lane.CONTROL: CONTROL_MAX_FRAME_BYTES, Lane.BULK: max_message_bytes + HEADER_ROOM_BYTES}

    async def open(self, incarnation: str, receive: Receive, unreachable: Unreachable = nobody_cares) -> StreamPort:
        """Listen on both lanes. Raises TransportError where a path cannot be bound."""
        folder = Path(tempfile.mkdtemp(prefix="headrace-", dir=self._folder))
        loop = asyncio.get_running_loop()
        port = StreamPort(incarnation, folder, Path(self._folder), self._max_message_bytes, self._shared_memory_bytes)
        try:
            for lane in Lane:
                path = checked_length(port.path(lane), "folder")
                incoming = _incoming(lane, self._limits[lane], receive, port)
                port.servers.append(await loop.create_unix_server(incoming, str(path), backlog=_BACKLOG))
        except (OSError, TransportError) as error:
            await port.close(0.0)
            raise TransportError(f"cannot listen in {folder}: {error}") from error
        return port


class StreamPort:
    def __init__(
        self, incarnation: str, folder: Path, peers_below: Path, max_message_bytes: int, shared_memory_bytes: int
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.shared_memory_bytes = shared_memory_bytes
        self._folder = folder
        self._peers_below = peers_below
        name = secrets.token_hex(4)
        self._paths = {lane: folder / f"{name}{lane.name[0].lower()}" for lane in Lane}
        endpoints = [f"{_SCHEME}{self._paths[lane]}" for lane in Lane]
        self._address = Address(incarnation, *endpoints)
        self._outgoing: dict[str, _Outgoing] = {}
        self._closing: set[_Outgoing] = set()
        self.servers: list[asyncio.AbstractServer] = []
        self.accepted: set[asyncio.Transport] = set()
        self.more = False

    @property
    def address(self) -> Address:
        return self._address

    def path(self, lane: Lane) -> Path:
        return self._paths[lane]

    def check(self, address: Address) -> None:
        for endpoint in (address.control, address.bulk):
            if not may_be_peer(endpoint, _SCHEME, self._peers_below):
                raise TransportError(f"{endpoint!r:.120} is no endpoint of a peer in this network")

    def send(self, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        endpoint = to.endpoint(lane)
        outgoing = self._outgoing.get(endpoint)
        if outgoing is None or outgoing.closed:
            if not self.servers:
                return
            outgoing = self._outgoing[endpoint] = _Outgoing(endpoint.removeprefix(_SCHEME))
        outgoing.send(frames)

    def forget(self, to: Address) -> None:
        for lane in Lane:
            outgoing = self._outgoing.pop(to.endpoint(lane), None)
            if outgoing is not None:
                # What was just queued (the news that it counts as dead, to a process that was only silent) may leave.
                outgoing.close()
                self._closing.add(outgoing)
                asyncio.get_running_loop().call_later(_FORGET_AFTER_S, self._abort, outgoing)

    async def close(self, flush_s: float) -> None:
        servers, self.servers = self.servers, []
        for server in servers:
            server.close()
        outgoing = [*self._outgoing.values(), *self._closing]
        self._outgoing.clear()
        self._closing.clear()
        for one in outgoing:
            one.close()
        waits = [one.ended for one in outgoing if not one.ended.done()]
        if waits and flush_s > 0:
            await asyncio.wait(waits, timeout=flush_s)
        for one in outgoing:
            one.abort()
        for transport in list(self.accepted):
            transport.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _abort(self, outgoing: _Outgoing) -> None:
        self._closing.discard(outgoing)
        outgoing.abort()


class _Outgoing(asyncio.Protocol):
    """One direction of one lane to one peer. What is sent before the connection stands waits for it."""

    def __init__(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._early: list[Frame] = []
        self._transport: asyncio.Transport | None = None
        self._asked_to_close = False
        self.closed = False
        self.ended: asyncio.Future[None] = loop.create_future()
        self._connecting = loop.create_task(self._connect(path), name=f"connect {path}")

    def send(self, frames: Sequence[Frame]) -> None:
        pieces = pack_message(frames)
        if self._transport is None:
            self._early += pieces
        elif len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    def close(self) -> None:
        """Once everything that was sent has left."""
        self._asked_to_close = self.closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.closed = True
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._end()

    async def _connect(self, path: str) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, path)
        except Exception as error:  # mostly: the peer is gone, and the directory tells whoever waits for it
            logger.log(
                logging.DEBUG if isinstance(error, OSError) else logging.ERROR, "no connection to %s: %r", path, error
            )
            self.closed = True
            self._end()

    def _end(self) -> None:
        self._early.clear()
        if not self.ended.done():
            self.ended.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        early, self._early = self._early, []
        if early:
            self._transport.writelines(early)
        if self._asked_to_close:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._end()


class _Incoming(asyncio.BufferedProtocol):
    def __init__(self, lane: Lane, limit: int, receive: Receive, port: StreamPort) -> None:
        self._lane = lane
        self._reader = MessageReader(limit)
        self._receive = receive
        self._port = port
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._port.accepted.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._port.accepted.discard(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, num_bytes: int) -> None:
        try:
            complete = self._reader.received(num_bytes)
            for left, frames in enumerate(complete, 1 - len(complete)):
                self._port.more = left < 0
                self._receive(self._lane, frames)
        except CorruptFrame as error:
            logger.warning("a connection was cut: %s", error)
            if self._transport is not None:
                self._transport.abort()


def _incoming(lane: Lane, limit: int, receive: Receive, port: StreamPort) -> Callable[[], asyncio.BufferedProtocol]:
    return lambda: _Incoming(lane, limit, receive, port)
