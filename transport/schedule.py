"""One interleaving out of many, drawn from a seed: how long each message travels and which process goes next.

A schedule changes nothing that the runtime promises: messages of one pair and lane keep their order, and the callbacks
of one process run in the order in which they became ready. It is asked by `VirtualTimeLoop` and `LoopbackNetwork`; the
same seed gives the same answers to the same questions. Pure.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar

PROCESS: ContextVar[str] = ContextVar("process", default="")
"""The process that the running code belongs to, where several share one event loop. Tasks and timers inherit it."""

_SLOW_FACTOR = 30.0


class Schedule:
    """Each seed has a temper of its own, drawn first: how far messages spread, how often one is late and by how much,
    and which processes are slow. Delays are virtual seconds."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(f"schedule {seed}")
        draw = self._random
        self._spread_s = draw.choice((1e-5, 1e-3, 1e-2, 1e-1))
        self._late_share = draw.choice((0.0, 0.01, 0.1))
        self._late_s = draw.choice((0.1, 1.0, 5.0))
        self._slow_share = draw.choice((0.0, 0.0, 0.2))
        self._factors: dict[str, float] = {}

    def delay_s(self, source: str, target: str) -> float:
        """How long the next message from process `source` to process `target` takes."""
        draw = self._random
        delay_s = draw.random() * self._spread_s * max(self._factor(source), self._factor(target))
        if self._late_share and draw.random() < self._late_share:
            delay_s += draw.random() * self._late_s
        return delay_s

    def next_of(self, num: int) -> int:
        """Which of `num` processes that have something to do goes next."""
        return int(self._random.random() * num)

    def _factor(self, process: str) -> float:
        factor = self._factors.get(process)
        if factor is None:
            slow = self._random.random() < self._slow_share
            factor = self._factors[process] = _SLOW_FACTOR if slow else 1.0
        return factor


class ScatteredQueue:
    """An event loop's ready queue: first in, first out within each process; between processes the schedule chooses.
    It has those methods of a deque that asyncio's loop uses."""

    def __init__(self, schedule: Schedule) -> None:
        self._next_of = schedule.next_of
        self._queues: dict[str, deque[asyncio.Handle]] = {}
        self._busy: list[deque[asyncio.Handle]] = []
        self._num = 0

    def append(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS, "")  # type: ignore[attr-defined]
        queue = self._queues.get(process)
        if queue is None:
            queue = self._queues[process] = deque()
        if not queue:
            self._busy.append(queue)
        queue.append(handle)
        self._num += 1

    def popleft(self) -> asyncio.Handle:
        if not self._num:
            raise IndexError("pop from an empty queue")
        busy = self._busy
        index = self._next_of(len(busy)) if len(busy) > 1 else 0
        queue = busy[index]
        handle = queue.popleft()
        if not queue:
            busy[index] = busy[-1]
            busy.pop()
        self._num -= 1
        return handle

    def clear(self) -> None:
        self._queues.clear()
        self._busy.clear()
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[asyncio.Handle]:
        return (handle for queue in self._queues.values() for handle in queue)
