"""Real processes for one run, forked off a server that has imported everything: each hosts one actor on a runtime of
its own, and may be killed, stopped, and started again, of which the directory hears as from a supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.transport import Actor, Runtime, ZmqNetwork

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["broadcast_faults.cast", "headrace.actors.parameter_server.actor"])
_FOLDER = str(Path(__file__).parent.parent)
_START_S = 60.0


class Processes:
    """sockets: a folder for those of all; what a killed process leaves in it is the caller's to remove."""

    def __init__(self, hub: Runtime, sockets: str) -> None:
        if _FOLDER not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # what the server imports by
            os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._hub = hub
        self._sockets = sockets
        self._running: dict[str, tuple[Any, str]] = {}
        self._makers: dict[str, tuple[Callable[..., Actor], dict[str, Any]]] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self.restarts = 0

    async def start(self, name: str, make: Callable[..., Actor], **options: Any) -> None:
        """Returns when the actor is announced."""
        incarnation = secrets.token_hex(6)
        arguments = name, str(self._hub.address), incarnation, self._sockets, make, options
        child = _FORK.Process(target=_host, args=arguments, daemon=True)
        child.start()
        self._running[name], self._makers[name] = (child, incarnation), (make, options)
        task = asyncio.ensure_future(self._watch(child, incarnation))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        await self._until(lambda: name in self._hub.context.everybody())

    async def _watch(self, child: Any, incarnation: str) -> None:
        """As a supervisor: the end of a process is known at once."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(child.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(child.sentinel)
        self._hub.directory.process_down(incarnation, "killed")

    def lives(self, name: str) -> bool:
        return bool(self._running[name][0].is_alive())

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self._running[name][0].pid, number)

    async def restart(self, name: str, **options: Any) -> None:
        """Once it is dead."""
        child, _ = self._running[name]
        await self._until(lambda: not child.is_alive() and name not in self._hub.context.everybody())
        make, before = self._makers[name]
        self.restarts += 1
        await self.start(name, make, **{**before, **options})

    async def _until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(_START_S):
            while not done():  # noqa: ASYNC110  # of other processes
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for task in list(self._watching):
            task.cancel()
        for child, _ in self._running.values():
            child.kill()
            child.join(10)


def _host(
    name: str,
    directory: str,
    incarnation: str,
    sockets: str,
    make: Callable[..., Actor],
    options: dict[str, Any],
) -> None:
    logging.basicConfig(level=logging.ERROR if "HEADRACE_MATRIX_LOG" not in os.environ else logging.INFO)

    async def main() -> None:
        runtime = Runtime(ZmqNetwork(ipc_folder=sockets), directory=directory, incarnation=incarnation)
        await runtime.start()
        await runtime.add(make(**options), name)
        await runtime.failed

    asyncio.run(main())
