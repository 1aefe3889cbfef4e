"""When the journal is written: what many handlers changed goes into one transaction, some milliseconds after the
first.

A handler that is about to give its word (an acknowledgement, sessions for an environment, a batch) awaits `durable`
before it does. Whoever changes something that nobody waits for calls `soon`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.transport import Clock

COMMIT_AFTER_S = 0.002
"""What comes within it shares a transaction. Far below what any session takes; long enough that the cost of a
transaction does not grow with the rate of sessions."""


class Commits:
    """`write` puts on disk whatever has changed since it was called last."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._wanted = asyncio.Event()
        self._done: asyncio.Future[None] | None = None
        self.num_commits = 0

    def soon(self) -> None:
        """Something has changed."""
        self._wanted.set()

    async def durable(self) -> None:
        """Returns when everything that has changed by now is on disk."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        self._wanted.set()
        await asyncio.shield(self._done)  # one of the many may be cancelled

    async def run(self, clock: Clock) -> None:
        """For the actor's life. An error of the disk ends it, and so the process: nothing goes on unrecorded."""
        while True:
            await self._wanted.wait()
            await clock.sleep(COMMIT_AFTER_S)
            self.now()

    def now(self) -> None:
        """Write at once (at the end of the actor's life)."""
        self._wanted.clear()
        done, self._done = self._done, None
        self._write()
        self.num_commits += 1
        if done is not None and not done.done():
            done.set_result(None)
