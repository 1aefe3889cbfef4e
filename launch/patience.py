"""Waiting for facts about a run's processes, with a word about it every two seconds. Called by scaler.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headrace.transport import Clock

PROGRESS_S = 2.0

Say = Callable[[str], None]


class Patience:
    """`unless` is called before each wait: it raises where there is nothing to wait for any more."""

    def __init__(self, clock: Clock, unless: Callable[[], None]) -> None:
        self._clock = clock
        self._unless = unless
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Something has changed: everybody looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, fact: Callable[[], bool], timeout_s: float, say: Say, what: str) -> bool:
        """Whether it became so in time."""
        began_s = told_s = self._clock.time()
        while not fact():
            self._unless()
            now_s = self._clock.time()
            if now_s - began_s >= timeout_s:
                return False
            if now_s - told_s >= PROGRESS_S:
                told_s = now_s
                say(f"waiting for {what} ({now_s - began_s:.0f} s)")
            next_s = min(told_s + PROGRESS_S, began_s + timeout_s) - now_s
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, next_s)):
                    await self._changed.wait()
        return True
