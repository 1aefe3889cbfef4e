"""Holds the learner's ask for a batch until there is one: the waiting around `Batches.take`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.actors.dispatcher.gauges import LongWait, describe_wait
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.messages import Batch, NextBatch
from headrace.transport import Clock

logger = logging.getLogger(__name__)

_SHORTEST_WAIT_S = 0.001


class Feeding:
    """`wake`: what was too old made room, sessions may be placed. `durable` is awaited before a batch is given away."""

    def __init__(
        self,
        training: TrainingSessions,
        placement: Placement,
        *,
        stall_log_s: float,
        wake: Callable[[], None],
        durable: Callable[[], Awaitable[None]],
    ) -> None:
        self._training = training
        self._placement = placement
        self._hunger = LongWait(stall_log_s)
        self._wake = wake
        self._durable = durable
        self._group_ready = asyncio.Event()

    def group_ready(self) -> None:
        """A group may have become ready, or the run has ended."""
        self._group_ready.set()

    async def next_batch(self, message: NextBatch, clock: Clock) -> Batch:
        """An empty Batch after `wait_s`, or when the run ends."""
        until_s = clock.time() + message.wait_s
        self._hunger.begin(clock.time())
        while True:
            self._group_ready.clear()
            batch = self._training.batches.take(message.step)
            self._wake()
            if batch is not None:
                self._hunger.end()
                await self._durable()
                return Batch(batch.groups, batch.version_steps, batch.num_failed)
            now_s = clock.time()
            if self._training.finished or now_s >= until_s:
                return Batch(())
            waited_s = self._hunger.alarm(now_s)
            if waited_s is not None:
                logger.warning(describe_wait(self._training, self._placement, waited_s=waited_s, now_s=now_s))
            try:
                async with asyncio.timeout(max(_SHORTEST_WAIT_S, min(self._hunger.alarm_at_s, until_s) - now_s)):
                    await self._group_ready.wait()
            except TimeoutError:
                continue
