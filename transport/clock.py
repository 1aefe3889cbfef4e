"""Time as the runtime sees it. Two clocks: the machine's monotonic one, and the event loop's own (virtual in tests)."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def time(self) -> float:
        """Monotonic seconds; only differences mean something."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the calling task."""


class MonotonicClock:
    """The machine's monotonic clock. uvloop's own time() has millisecond steps, too coarse for accounting."""

    time = staticmethod(time.perf_counter)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class LoopClock:
    """The running event loop's clock: virtual under `run_virtual`."""

    def __init__(self) -> None:
        self.time = asyncio.get_running_loop().time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
