"""Actors of the supervision tests: tiny topologies that finish, fail, or start processes of their own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.actors.messages import RunFinished
from headrace.transport import Actor, Context

_GRANDCHILD = "import time; time.sleep(600)"
_WORKER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_GRANDCHILD!r}])"


class Finisher(Actor):
    """Ends the run when `marks` files are in `folder` (0: at once)."""

    def __init__(self, *, folder: str, marks: int = 0) -> None:
        self._folder, self._marks = Path(folder), marks

    async def on_start(self, context: Context) -> None:
        context.spawn(self._finish(), "finish")

    async def _finish(self) -> None:
        while len(list(self._folder.glob("mark-*"))) < self._marks:  # noqa: ASYNC110 - other processes make them
            await asyncio.sleep(0.05)
        await self.context.ask("supervisor/0", RunFinished("enough"), timeout_s=30)


class Idle(Actor):
    """Leaves its process id in `folder` and waits."""

    def __init__(self, *, folder: str) -> None:
        self._folder = Path(folder)

    async def on_start(self, context: Context) -> None:
        self._mark()

    def _mark(self) -> None:
        (self._folder / f"mark-{os.getpid()}").touch()


class Family(Idle):
    """wrapper (this process) → worker → grandchild, and a file in shared memory."""

    def __init__(self, *, folder: str, run_id: str) -> None:
        super().__init__(folder=folder)
        self._run_id = run_id

    async def on_start(self, context: Context) -> None:
        self._start()

    def _start(self) -> None:
        subprocess.Popen([sys.executable, "-c", _WORKER])
        Path(f"/dev/shm/headrace-{self._run_id}-weights-test").touch()
        self._mark()


class Stubborn(Idle):
    """Ignores SIGTERM and blocks its event loop."""

    async def on_start(self, context: Context) -> None:
        context.spawn(self._block(), "block")

    async def _block(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._mark()
        self._hang()

    def _hang(self) -> None:
        time.sleep(600)


class RaisesLater(Actor):
    """A background task that nobody holds raises, after a collection of garbage."""

    async def on_start(self, context: Context) -> None:
        context.spawn(self._raise(), "raise")
        gc.collect()

    async def _raise(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0.05)
            gc.collect()
        raise ZeroDivisionError("the background task's own words")


class DiesOnce(Idle):
    """Killed in its first life, well in its second."""

    async def on_start(self, context: Context) -> None:
        first = not list(self._folder.glob("died"))
        if first:
            (self._folder / "died").touch()
            print("half a line before the end", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        self._mark()


class FreezesOnce(Idle):
    """Stops itself once it is up, in its first life."""

    async def on_start(self, context: Context) -> None:
        if not list(self._folder.glob("mark-*")):
            context.spawn(self._freeze(), "freeze")
        self._mark()

    async def _freeze(self) -> None:
        await self.context.group(self.context.role).wait_for(1, timeout_s=60)
        os.kill(os.getpid(), signal.SIGSTOP)
