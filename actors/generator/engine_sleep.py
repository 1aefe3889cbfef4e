"""Whether a generator's engine sleeps, so that a learner on the same GPU has its memory, and that it is awake for
whoever needs it. No GPU in here. A wake is part of what needs it; an engine that takes too long over either is lost.

It sleeps when the learner asks (SleepEngine, mode=sync) and nothing is in flight; the next commit or request wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable

from headrace.actors.generator.engine import Engine, EngineDied, SleepingEngine

logger = logging.getLogger(__name__)

CHANGE_TIMEOUT_S = 50.0
"""Gigabytes between a GPU and its host: seconds. Below the deadlines of those who wait for it."""


class EngineSleep:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changing = asyncio.Lock()
        self._asleep = False
        self._waking: asyncio.Task[None] | None = None
        self._num_users = 0

    @contextlib.asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """While this is held the engine is awake. Raises EngineDied where it does not wake. A caller that gives up does
        not end the waking, half of which would be nothing to go on from."""
        self._num_users += 1  # from here on it is not put to sleep
        try:
            if self._asleep or self._changing.locked():
                if self._waking is None or self._waking.done():
                    self._waking = asyncio.ensure_future(self._wake())
                await asyncio.shield(self._waking)
            yield
        finally:
            self._num_users -= 1

    async def sleep(self) -> str:
        """Why the engine does not sleep; empty where it does. Raises EngineDied."""
        async with self._changing:
            if self._asleep:
                return ""
            if not isinstance(self._engine, SleepingEngine) or not self._engine.sleeps:
                return "its engine has no sleep_while_training"
            if self._num_users:
                return f"{self._num_users} requests are in flight"
            self._asleep = True
            await _in_time(self._engine.sleep(), "fall asleep")
            logger.info("the engine sleeps")
            return ""

    async def _wake(self) -> None:
        async with self._changing:
            if self._asleep:
                assert isinstance(self._engine, SleepingEngine)
                await _in_time(self._engine.wake(), "wake")
                self._asleep = False
                logger.info("the engine is awake")


async def _in_time(change: Awaitable[None], what: str) -> None:
    try:
        async with asyncio.timeout(CHANGE_TIMEOUT_S):
            await change
    except TimeoutError as error:
        raise EngineDied(f"the engine did not {what} within {CHANGE_TIMEOUT_S:g} s") from error
