"""Whether a foreign vLLM server is there, and still the one that was loaded: labels say so. The engine ends with it.

Every label that the engine gives has a prefix of its own. A server that was restarted, or that somebody else steers,
labels differently. Knows no weights and no requests. Used by vllm_server_engine.py and vllm_server_nccl.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.vllm_server_client import ServerGone, ServerRefused, VllmServerClient

T = TypeVar("T")


class ServerLife:
    """watch_period_s: how often the server is asked whether it is the same."""

    def __init__(self, client: VllmServerClient, watch_period_s: float) -> None:
        self._client = client
        self._watch_period_s = watch_period_s
        self.prefix = f"{secrets.token_hex(4)}/"
        self.version = 0
        """that the server has"""
        self._death: str | None = "it was not started"
        self._died = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._death = None
        self._watcher = asyncio.create_task(self._watch(), name="vllm-server-watch")
        self._watcher.add_done_callback(self._watch_ended)

    async def end(self) -> None:
        """Idempotent."""
        self.die("it was closed")
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None

    def label(self, version: int) -> str:
        return f"{self.prefix}{version}"

    def check_label(self, found: str, expected: str) -> None:
        """Raises EngineDied where they differ."""
        if found != expected:
            raise self.dies(self.replaced(found))

    def replaced(self, label: str) -> str:
        return (
            f"the vLLM server at {self._client.url} was restarted, or somebody else steers it too: its tokens are of "
            f"{label!r}, not of {self.label(self.version)!r}"
        )

    def check(self) -> None:
        if self._death is not None:
            raise EngineDied(f"the vLLM server cannot serve: {self._death}")

    def dies(self, why: str) -> EngineDied:
        """To be raised. The first death is the one that is told."""
        self.die(why)
        return EngineDied(f"the vLLM server cannot serve: {self._death}")

    def die(self, why: str) -> None:
        if not self._died.is_set():
            self._death = why
        self._died.set()

    async def unless_dead(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result, or EngineDied as soon as this engine dies. Cancelling this cancels the work."""
        task = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return await task
        finally:
            for pending in (task, death):
                pending.cancel()
            await asyncio.gather(task, death, return_exceptions=True)

    async def _watch(self) -> None:
        """Also where no request asks: whether the server is there, and the one that was loaded."""
        while True:
            await asyncio.sleep(self._watch_period_s)
            try:
                label = await self._client.label()
            except (ServerGone, ServerRefused) as error:
                return self.die(f"the vLLM server went away: {error}")
            if not label.startswith(self.prefix):
                return self.die(self.replaced(label))

    def _watch_ended(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled() and watcher.exception() is not None:
            self.die(f"the vLLM server cannot be watched any more: {watcher.exception()!r}")
