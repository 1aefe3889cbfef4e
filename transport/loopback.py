"""A network in memory: many runtimes on one event loop, for tests and in-process runs. Frames travel as they are.

Order for each pair and lane is kept; a closed port is an address that is gone. Share one `LoopbackNetwork` among the
runtimes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from headrace.transport.network import Address, Frame, Lane, Receive


class LoopbackNetwork:
    def __init__(self, *, heartbeat_s: float | None = None) -> None:
        self.heartbeat_s = heartbeat_s
        self._ports: dict[str, LoopbackPort] = {}

    async def open(self, incarnation: str, receive: Receive) -> LoopbackPort:
        port = LoopbackPort(self, Address(incarnation, f"loopback:{incarnation}", f"loopback:{incarnation}"), receive)
        self._ports[incarnation] = port
        return port

    def _deliver(self, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        port = self._ports.get(to.incarnation)
        if port is not None:
            port._enqueue(lane, frames)

    def _close(self, address: Address) -> None:
        self._ports.pop(address.incarnation, None)


class LoopbackPort:
    def __init__(self, network: LoopbackNetwork, address: Address, receive: Receive) -> None:
        self._network = network
        self._address = address
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[Lane, Sequence[Frame]]] = deque()
        self._closed = False

    @property
    def address(self) -> Address:
        return self._address

    def send(self, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        if not self._closed:
            self._network._deliver(to, lane, list(frames))

    def forget(self, to: Address) -> None:
        """Nothing is kept for a peer."""

    async def close(self, flush_s: float) -> None:
        self._closed = True
        self._network._close(self._address)

    def _enqueue(self, lane: Lane, frames: Sequence[Frame]) -> None:
        self._arrived.append((lane, frames))
        self._loop.call_soon(self._pop)

    def _pop(self) -> None:
        lane, frames = self._arrived.popleft()
        if not self._closed:
            self._receive(lane, frames)
