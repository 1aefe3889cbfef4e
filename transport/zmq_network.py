"""The network over ZeroMQ: a bound PULL socket for each lane, a connected PUSH socket for each peer and lane, each
lane with its own I/O thread.

Sockets are plain, drained by their descriptor on the event loop; nothing is awaited on them. High-water marks are 0:
bounds are the credits' affair. Receiving sockets never send, so no edge of their descriptor is consumed by a send.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from headrace.transport.errors import TransportError
from headrace.transport.network import Address, Frame, Lane, Receive

DRAIN_BUDGET = 256
"""Messages taken from one socket before the rest of the event loop gets its turn."""

CONTROL_MAX_FRAME_BYTES = 4 * 1024 * 1024
BULK_MAX_FRAME_BYTES = 64 * 1024**3
_COPY_BELOW_BYTES = 32 * 1024
_MAX_IPC_PATH_BYTES = 107
_FORGET_LINGER_MS = 200
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)


class ZmqNetwork:
    """`bind`: "ipc" (one host: sockets in a fresh folder of mode 0700) or "tcp://<interface address>" (a port is
    chosen by the system; several hosts need an address that the others reach). `ipc_folder`: where the fresh folder
    is made; the system's temporary folder by default. `heartbeat_s`: how often a runtime tells the directory that it
    lives."""

    def __init__(
        self,
        *,
        bind: str = "ipc",
        ipc_folder: str | None = None,
        heartbeat_s: float | None = 1.0,
        max_frame_bytes: int = BULK_MAX_FRAME_BYTES,
    ) -> None:
        if bind != "ipc" and not bind.startswith("tcp://"):
            raise ValueError(f'network bind must be "ipc" or "tcp://<interface address>", got {bind!r}')
        if bind.startswith("tcp://"):
            _check_interface(bind.removeprefix("tcp://"))
        if heartbeat_s is not None and heartbeat_s <= 0:
            raise ValueError(f"heartbeat_s must be > 0 or None, got {heartbeat_s}")
        self.heartbeat_s = heartbeat_s
        self._bind = bind
        self._ipc_folder = ipc_folder
        self._max_frame_bytes = max_frame_bytes

    async def open(self, incarnation: str, receive: Receive) -> ZmqPort:
        """Bind both lanes. Raises TransportError where an endpoint cannot be bound."""
        folder = None
        if self._bind == "ipc":
            folder = Path(tempfile.mkdtemp(prefix="headrace-", dir=self._ipc_folder))
        limits = {Lane.CONTROL: CONTROL_MAX_FRAME_BYTES, Lane.BULK: self._max_frame_bytes}
        lanes = {lane: _LaneSockets(lane, limits[lane], receive) for lane in Lane}
        try:
            endpoints = [lanes[lane].bind(self._endpoint(lane, folder)) for lane in Lane]
        except zmq.ZMQError as error:
            for one in lanes.values():
                one.close(0.0)
            raise TransportError(f"cannot bind {self._bind}: {error}") from error
        return ZmqPort(Address(incarnation, *endpoints), lanes, folder)

    def _endpoint(self, lane: Lane, folder: Path | None) -> str:
        if folder is None:
            return f"{self._bind}:*"
        # Random, never reused: a second bind on a path would succeed and steal the traffic.
        path = str(folder / f"{secrets.token_hex(4)}{lane.name[0].lower()}")
        if len(os.fsencode(path)) > _MAX_IPC_PATH_BYTES:
            raise TransportError(
                f"the socket path {path} is longer than {_MAX_IPC_PATH_BYTES} bytes; give a shorter ipc_folder"
            )
        return f"ipc://{path}"


def _check_interface(host: str) -> None:
    """A wildcard cannot be announced to others, and binds more than was asked for."""
    try:
        address = ipaddress.ip_address(socket.gethostbyname(host))
    except (OSError, ValueError) as error:
        raise ValueError(f"network bind: {host!r} is no address of an interface: {error}") from error
    if address.is_unspecified:
        raise ValueError(
            f"network bind: {host!r} is a wildcard; name the interface's own address, e.g. tcp://127.0.0.1"
        )


class ZmqPort:
    def __init__(self, address: Address, lanes: dict[Lane, _LaneSockets], folder: Path | None) -> None:
        self._address = address
        self._lanes = lanes
        self._folder = folder
        self._closed = False

    @property
    def address(self) -> Address:
        return self._address

    def send(self, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        if not self._closed:
            self._lanes[lane].send(to.endpoint(lane), frames)

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
    """One lane: its context (and so its I/O thread), its bound PULL, its PUSH for each peer."""

    def __init__(self, lane: Lane, max_frame_bytes: int, receive: Receive) -> None:
        self._lane = lane
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, 16384)
        self._pull = self._context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.RCVHWM, 0)
        self._pull.setsockopt(zmq.LINGER, 0)
        self._pull.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self._push: dict[str, zmq.Socket[bytes]] = {}
        self._fd: int | None = None

    def bind(self, endpoint: str) -> str:
        self._pull.bind(endpoint)
        fd = self._pull.getsockopt(zmq.FD)
        assert isinstance(fd, int)
        self._fd = fd
        drain = self._drain_control if self._lane is Lane.CONTROL else self._drain_bulk
        self._loop.add_reader(fd, drain)
        # What arrived between bind and add_reader has consumed the descriptor's first edge.
        self._loop.call_soon(drain)
        bound = self._pull.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def send(self, endpoint: str, frames: Sequence[Frame]) -> None:
        push = self._push.get(endpoint)
        if push is None:
            push = self._push[endpoint] = self._context.socket(zmq.PUSH)
            push.setsockopt(zmq.SNDHWM, 0)
            push.setsockopt(zmq.LINGER, 0)
            push.connect(endpoint)
        if len(frames) == 1:
            push.send(frames[0], zmq.NOBLOCK)
            return
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            copy = memoryview(frame).nbytes < _COPY_BELOW_BYTES
            push.send(frame, zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE, copy=copy)

    def disconnect(self, endpoint: str) -> None:
        push = self._push.pop(endpoint, None)
        if push is not None:
            # What was just queued (the news that it counts as dead, to a process that was only silent) may leave.
            push.close(linger=_FORGET_LINGER_MS)

    def close(self, flush_s: float) -> Callable[[], None]:
        """Close every socket; the returned function waits until what lingers has left and frees the context."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None
        self._pull.close(linger=0)
        for push in self._push.values():
            push.close(linger=int(flush_s * 1000))
        self._push.clear()
        return self._context.term

    def _drain_control(self) -> None:
        if self._fd is None:
            return
        pull, receive, lane = self._pull, self._receive, self._lane
        with contextlib.suppress(zmq.Again):
            for _ in range(DRAIN_BUDGET):
                receive(lane, (pull.recv(zmq.NOBLOCK),))
                # Asking costs a third of the exception that an empty socket raises.
                if not pull.getsockopt(_EVENTS) & _POLLIN:  # type: ignore[operator]
                    return
            self._loop.call_soon(self._drain_control)

    def _drain_bulk(self) -> None:
        if self._fd is None:
            return
        with contextlib.suppress(zmq.Again):
            for _ in range(DRAIN_BUDGET):
                parts = self._pull.recv_multipart(zmq.NOBLOCK, copy=False)
                self._receive(self._lane, [part.buffer for part in parts])
            self._loop.call_soon(self._drain_bulk)
