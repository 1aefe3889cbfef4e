"""The network over ZeroMQ: a bound PULL socket for each lane, a connected PUSH socket for each peer and lane, each
lane with its own I/O thread.

Sockets are plain, drained by their descriptor on the event loop; nothing is awaited on them. High-water marks are 0:
bounds are the credits' affair. Receiving sockets never send, so no edge of their descriptor is consumed by a send.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - else asyncio imports it at the end, perhaps without a descriptor left
import functools
import logging
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from headrace.transport.bounded_log import BoundedLog
from headrace.transport.errors import TransportError
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
from headrace.transport.security.counters import HandshakeCounters
from headrace.transport.security.handshakes import ConnectorWatch, ListenerWatch
from headrace.transport.security.interface import SCHEME, resolve
from headrace.transport.security.keys import CurveKeys
from headrace.transport.security.zap import DOMAIN, ZapHandler
from headrace.transport.socket_files import checked_length, may_be_peer

logger = logging.getLogger(__name__)

DRAIN_BUDGET = 256
"""Messages taken from one socket before the rest of the event loop gets its turn."""

_COPY_BELOW_BYTES = 64 * 1024
_HANDSHAKE_MS = 10_000
"""Who has not shown its key by then is cut off: a stranger holds a descriptor no longer."""
_IPC = "ipc://"
_FORGET_LINGER_MS = 200
_TCP_ENDPOINT = re.compile(r"tcp://(\d{1,3}\.){3}\d{1,3}:[1-9]\d{0,4}", re.ASCII)
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)


class ZmqNetwork:
    """`bind`: "ipc" (one host: sockets in a fresh folder of mode 0700) or "tcp://<address or interface>" (a port is
    chosen by the system). `keys`: the run's, for tcp; without them anybody who reaches the port may speak, so they may
    be absent on loopback only. `ipc_folder`: where the fresh folder is made, and below which the sockets of peers lie;
    the system's temporary folder by default. `max_message_bytes`: of what is received in one frame; a peer that sends
    more is cut off. `heartbeat_s`: how often a runtime tells the directory that it lives. `shared_memory_bytes`: what a
    sender shares with each receiver for large arrays, over ipc only; 0: they travel through the sockets. Raises
    ValueError."""

    def __init__(
        self,
        *,
        bind: str = "ipc",
        keys: CurveKeys | None = None,
        ipc_folder: str | None = None,
        heartbeat_s: float | None = 1.0,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        shared_memory_bytes: int = SHARED_MEMORY_BYTES,
    ) -> None:
        if bind != "ipc" and not bind.startswith(SCHEME):
            raise ValueError(f'bind must be "ipc" or "tcp://<address or interface>", got {bind!r}')
        if heartbeat_s is not None and heartbeat_s <= 0:
            raise ValueError(f"heartbeat_s must be > 0 or None, got {heartbeat_s}")
        if bind.startswith(SCHEME):
            address = resolve(bind)
            if keys is None and not address.is_loopback:
                raise ValueError(f"bind: {bind!r} is reached by other hosts; give keys (CurveKeys.make())")
            bind = f"{SCHEME}{address}"
        self.heartbeat_s = heartbeat_s
        self._shared_memory_bytes = checked_shared_memory(shared_memory_bytes) if bind == "ipc" else 0
        self._bind = bind
        self._keys = None if bind == "ipc" else keys
        self._ipc_folder = ipc_folder or tempfile.gettempdir()
        self._max_message_bytes = max_message_bytes

    async def open(self, incarnation: str, receive: Receive, unreachable: Unreachable = nobody_cares) -> ZmqPort:
        """Bind both lanes. Raises TransportError where an endpoint cannot be bound."""
        folder = None
        if self._bind == "ipc":
            folder = Path(tempfile.mkdtemp(prefix="headrace-", dir=self._ipc_folder))
        limits = {Lane.CONTROL: CONTROL_MAX_FRAME_BYTES, Lane.BULK: self._max_message_bytes + HEADER_ROOM_BYTES}
        counters = HandshakeCounters()
        lanes = {lane: _LaneSockets(lane, limits[lane], receive, self._keys, counters, unreachable) for lane in Lane}
        try:
            endpoints = [lanes[lane].bind(self._endpoint(lane, folder)) for lane in Lane]
        except zmq.ZMQError as error:
            for one in lanes.values():
                one.close(0.0)
            raise TransportError(f"cannot bind {self._bind}: {error}") from error
        address = Address(incarnation, *endpoints)
        port = ZmqPort(address, lanes, folder, counters, self._is_reachable)
        port.max_message_bytes, port.shared_memory_bytes = self._max_message_bytes, self._shared_memory_bytes
        return port

    def _endpoint(self, lane: Lane, folder: Path | None) -> str:
        if folder is None:
            return f"{self._bind}:*"
        # Random, never reused: a second bind on a path would succeed and steal the traffic.
        path = checked_length(folder / f"{secrets.token_hex(4)}{lane.name[0].lower()}", "ipc_folder")
        return f"{_IPC}{path}"

    def _is_reachable(self, endpoint: str) -> bool:
        """Whether a peer of this network may bind there. What comes in a HELLO is connected to: no other socket of this
        host or service of this network shall be."""
        if self._bind == "ipc":
            return may_be_peer(endpoint, _IPC, Path(self._ipc_folder))
        return _TCP_ENDPOINT.fullmatch(endpoint) is not None


_OPEN: set[_LaneSockets] = set()
"""What nobody closed is kept. The collector clears weak references before it calls finalizers: a context that it takes
together with its sockets knows none of them any more, and its end would wait for theirs for ever."""


class ZmqPort:
    def __init__(
        self,
        address: Address,
        lanes: dict[Lane, _LaneSockets],
        folder: Path | None,
        handshakes: HandshakeCounters,
        is_reachable: Callable[[str], bool],
    ) -> None:
        self.max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self.shared_memory_bytes = 0
        self.handshakes = handshakes
        self._log = BoundedLog(logger)
        self._address = address
        self._lanes = lanes
        self._folder = folder
        self._is_reachable = is_reachable
        self._closed = False

    @property
    def address(self) -> Address:
        return self._address

    @property
    def more(self) -> bool:
        return self._lanes[Lane.CONTROL].more

    def check(self, address: Address) -> None:
        for endpoint in (address.control, address.bulk):
            if not self._is_reachable(endpoint):
                raise TransportError(f"{endpoint!r:.120} is no endpoint of a peer in this network")

    def send(self, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        if not self._closed:
            try:
                self._lanes[lane].send(to.endpoint(lane), frames)
            except zmq.Again:
                pass  # a connection that its peer rejected takes nothing more; the news of that is on its way
            except zmq.ZMQError as error:  # no more descriptors, for example
                self._log.warning("unsent", "what was meant for %s was not sent: %s", to, error)
                self._lanes[lane].give_up(to.endpoint(lane), str(error))

    def forget(self, to: Address) -> None:
        for lane, sockets in self._lanes.items():
            sockets.disconnect(to.endpoint(lane))

    async def close(self, flush_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        terminations: list[Callable[[], None]] = [sockets.close(flush_s) for sockets in self._lanes.values()]
        loop = asyncio.get_running_loop()
        # Waits for the lingering sockets, for at most flush_s each.
        await asyncio.gather(*(loop.run_in_executor(None, terminate) for terminate in terminations))
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _LaneSockets:
    """One lane: its context (and so its I/O thread), its bound PULL, its PUSH for each peer; with `keys`, the handler
    that admits to the PULL and the watches over all handshakes."""

    def __init__(
        self,
        lane: Lane,
        max_frame_bytes: int,
        receive: Receive,
        keys: CurveKeys | None,
        counters: HandshakeCounters,
        unreachable: Unreachable,
    ) -> None:
        self._lane = lane
        self._receive = receive
        self._keys = keys
        self._counters = counters
        self._unreachable = unreachable
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context(io_threads=1)
        _OPEN.add(self)
        self._context.set(zmq.MAX_SOCKETS, 16384)
        self._pull = self._context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.RCVHWM, 0)
        self._pull.setsockopt(zmq.LINGER, 0)
        self._pull.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self.more = False
        self._push: dict[str, zmq.Socket[bytes]] = {}
        self._watches: dict[str, ConnectorWatch] = {}
        self._gates: tuple[ZapHandler, ListenerWatch] | None = None
        if keys is not None:
            self._pull.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
            keys.serve(self._pull, DOMAIN)
            self._gates = (
                ZapHandler(self._context, keys.client_public, counters),
                ListenerWatch(self._pull, counters),
            )
        self._fd: int | None = None

    def bind(self, endpoint: str) -> str:
        self._pull.bind(endpoint)
        fd = self._pull.getsockopt(zmq.FD)
        assert isinstance(fd, int)
        self._fd = fd
        read = self._read_control if self._lane is Lane.CONTROL else self._read_bulk
        self._loop.add_reader(fd, self._drain, read)
        # What arrived between bind and add_reader has consumed the descriptor's first edge.
        self._loop.call_soon(self._drain, read)
        bound = self._pull.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def send(self, endpoint: str, frames: Sequence[Frame]) -> None:
        push = self._push.get(endpoint)
        if push is None:
            push = self._connect(endpoint)
        if len(frames) == 1:
            push.send(frames[0], zmq.NOBLOCK)
            return
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            copy = (len(frame) if type(frame) is bytes else memoryview(frame).nbytes) < _COPY_BELOW_BYTES
            push.send(frame, zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE, copy=copy)

    def _connect(self, endpoint: str) -> zmq.Socket[bytes]:
        push = self._push[endpoint] = self._context.socket(zmq.PUSH)
        push.setsockopt(zmq.SNDHWM, 0)
        push.setsockopt(zmq.LINGER, 0)
        if self._keys is not None:
            self._keys.join(push)
            rejected = functools.partial(self._on_rejected, endpoint)
            self._watches[endpoint] = ConnectorWatch(push, self._counters, rejected)
        push.connect(endpoint)
        return push

    def give_up(self, endpoint: str, reason: str) -> None:
        """Nothing can be sent there: whoever waits learns it, once the caller is through."""
        self._loop.call_soon(self._on_rejected, endpoint, reason)

    def _on_rejected(self, endpoint: str, reason: str) -> None:
        """Nothing that was queued for that peer has left; the next message to it tries anew."""
        self._stop_watching(endpoint)
        push = self._push.pop(endpoint, None)
        if push is not None:
            push.close(linger=0)
        self._unreachable(self._lane, endpoint, reason)

    def _stop_watching(self, endpoint: str) -> None:
        watch = self._watches.pop(endpoint, None)
        if watch is not None:
            watch.close()

    def disconnect(self, endpoint: str) -> None:
        self._stop_watching(endpoint)
        push = self._push.pop(endpoint, None)
        if push is not None:
            # What was just queued (the news that it counts as dead, to a process that was only silent) may leave.
            push.close(linger=_FORGET_LINGER_MS)

    def close(self, flush_s: float) -> Callable[[], None]:
        """Close every socket; the returned function waits until what lingers has left and frees the context."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None
        for gate in self._gates or ():
            gate.close()
        for endpoint in list(self._watches):
            self._stop_watching(endpoint)
        self._pull.close(linger=0)
        for push in self._push.values():
            push.close(linger=int(flush_s * 1000))
        self._push.clear()
        _OPEN.discard(self)
        return self._context.term

    def _drain(self, read: Callable[[], bool]) -> None:
        """Read until nothing is there, or the rest of the loop has its turn. The descriptor tells only of what comes
        when nothing was left: a read that fails must not leave anything."""
        if self._fd is None:
            return
        is_empty = False
        try:
            for _ in range(DRAIN_BUDGET):
                if read():
                    is_empty = True
                    break
        except zmq.Again:
            is_empty = True
        finally:
            if not is_empty:
                self._loop.call_soon(self._drain, read)

    def _read_control(self) -> bool:
        """One message. Whether it was the last; raises zmq.Again where there was none."""
        pull = self._pull
        frame = pull.recv(zmq.NOBLOCK)
        # Asking costs a third of the exception that an empty socket raises.
        self.more = bool(pull.getsockopt(_EVENTS) & _POLLIN)  # type: ignore[operator]
        self._receive(self._lane, (frame,))
        return not self.more

    def _read_bulk(self) -> bool:
        pull = self._pull
        part = pull.recv(zmq.NOBLOCK, copy=False)
        frames = [part.buffer]
        while part.more:
            part = pull.recv(copy=False)  # it is there: a message arrives whole
            frames.append(part.buffer)
        self._receive(self._lane, frames)
        return not pull.getsockopt(_EVENTS) & _POLLIN  # type: ignore[operator]
