"""Messages to one actor, in order, each until it is acknowledged. Putting one in never waits.

Bound: what a supervisor has to say about the processes of one node, which the topology bounds. A peer that hangs
blocks the queue, not its owner; the directory's silence limit unblocks it. Used by supervisor.py and
node_supervisor.py.
"""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.transport import Context, DeadlineExceeded, PeerLost

ASK_TIMEOUT_S = 30.0


class Outbox:
    """Where the peer is lost, what is left is dropped: who owns this learns of the loss by itself."""

    def __init__(self, context: Context, to: str) -> None:
        self._context, self._to = context, to
        self._messages: deque[object] = deque()
        self._more = asyncio.Event()
        self._task = context.spawn(self._run(), f"outbox to {to}")

    def put(self, message: object) -> None:
        self._messages.append(message)
        self._more.set()

    def clear(self) -> None:
        """Drop what has not been sent."""
        self._messages.clear()

    def close(self) -> None:
        self.clear()
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            while self._messages:
                await self._deliver(self._messages.popleft())
            self._more.clear()
            await self._more.wait()

    async def _deliver(self, message: object) -> None:
        """Repeated where no answer came: each of these messages says its own incarnation or is harmless twice."""
        while True:
            try:
                await self._context.ask(self._to, message, timeout_s=ASK_TIMEOUT_S)
            except DeadlineExceeded:
                continue
            except PeerLost:
                pass
            return
