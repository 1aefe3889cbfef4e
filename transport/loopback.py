"""A network in memory: many runtimes on one event loop, for tests and in-process runs. Frames travel as they are.

Order for each pair and lane is kept; a closed port is an address that is gone. Share one `LoopbackNetwork` among the
runtimes. With a `Schedule` each message takes the virtual time that the seed gives it, `cut` plays the death of a
process and `lose` a connection that breaks.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Callable, Sequence

from headrace.transport.errors import TransportError
from headrace.transport.network import (
    DEFAULT_MAX_MESSAGE_BYTES,
    Address,
    Frame,
    Lane,
    Receive,
    Unreachable,
    checked_shared_memory,
    nobody_cares,
)
from headrace.transport.schedule import PROCESS, Schedule

Pair = tuple[str, Lane]
"""The sending incarnation and the lane: what arrives of one pair arrives in order."""

Tap = Callable[[float, str, str, Lane, Sequence[Frame]], None]
"""Called with each message at its arrival: loop time, sending and receiving incarnation, lane, frames."""


class LoopbackNetwork:
    """`heartbeat_s`: as for every network; None where a runtime cannot die alone. `shared_memory_bytes`: as between
    processes of one host; none by default, since here nothing is copied anyway."""

    def __init__(
        self,
        *,
        heartbeat_s: float | None = None,
        schedule: Schedule | None = None,
        tap: Tap | None = None,
        shared_memory_bytes: int = 0,
    ) -> None:
        self.shared_memory_bytes = checked_shared_memory(shared_memory_bytes)
        self.heartbeat_s = heartbeat_s
        self.tap = tap
        self._schedule = schedule
        self._ports: dict[str, LoopbackPort] = {}
        self._to_lose: Counter[tuple[str, str, Lane]] = Counter()
        self.num_lost = 0
        """messages that `lose` has taken"""

    async def open(self, incarnation: str, receive: Receive, unreachable: Unreachable = nobody_cares) -> LoopbackPort:
        address = Address(incarnation, f"loopback:{incarnation}", f"loopback:{incarnation}")
        port = self._ports[incarnation] = LoopbackPort(self, address, receive, self._schedule)
        return port

    def cut(self, incarnation: str) -> None:
        """That process is dead: nothing more leaves it, and nothing reaches it."""
        port = self._ports.pop(incarnation, None)
        if port is not None:
            port._closed = True

    def lose(self, source: str, target: str, lane: Lane, num: int) -> None:
        """The connection breaks: the next `num` messages of that pair and lane never arrive."""
        self._to_lose[source, target, lane] += num

    def _deliver(self, source: str, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        if self._to_lose and self._to_lose[source, to.incarnation, lane] > 0:
            self._to_lose[source, to.incarnation, lane] -= 1
            self.num_lost += 1
            return
        port = self._ports.get(to.incarnation)
        if port is not None:
            port._enqueue((source, lane), frames)


class LoopbackPort:
    def __init__(self, network: LoopbackNetwork, address: Address, receive: Receive, schedule: Schedule | None) -> None:
        self.max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self.shared_memory_bytes = network.shared_memory_bytes
        self._network = network
        self._address = address
        self._receive = receive
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._process = PROCESS.get()
        self._context = contextvars.copy_context()  # what arrives is this process's work, not its sender's
        self._arriving: dict[Pair, deque[Sequence[Frame]]] = {}
        self._last_s: dict[Pair, float] = {}
        self._closed = False
        self._num_arriving = 0
        self.more = False

    @property
    def address(self) -> Address:
        return self._address

    def check(self, address: Address) -> None:
        if not address.control.startswith("loopback:") or not address.bulk.startswith("loopback:"):
            raise TransportError(f"{str(address)!r:.120} is no address of a peer in this network")

    def send(self, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        if not self._closed:
            self._network._deliver(self._address.incarnation, to, lane, list(frames))

    def forget(self, to: Address) -> None:
        """Nothing is kept for a peer."""

    async def close(self, flush_s: float) -> None:
        self._closed = True
        if self._network._ports.get(self._address.incarnation) is self:
            self._network.cut(self._address.incarnation)

    def _enqueue(self, pair: Pair, frames: Sequence[Frame]) -> None:
        self._arriving.setdefault(pair, deque()).append(frames)
        self._num_arriving += 1
        if self._schedule is None:
            self._loop.call_soon(self._arrive, pair, context=self._context)
            return
        # Never before its predecessor: with equal times the timers may ring in any order, the deque keeps it.
        due_s = max(self._loop.time() + self._schedule.delay_s(PROCESS.get(), self._process), self._last_s.get(pair, 0))
        self._last_s[pair] = due_s
        self._loop.call_at(due_s, self._arrive, pair, context=self._context)

    def _arrive(self, pair: Pair) -> None:
        frames = self._arriving[pair].popleft()
        self._num_arriving -= 1
        self.more = self._schedule is None and self._num_arriving > 0
        if self._closed:
            return
        if self._network.tap is not None:
            self._network.tap(self._loop.time(), pair[0], self._address.incarnation, pair[1], frames)
        self._receive(pair[1], frames)
