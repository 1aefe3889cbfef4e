"""Actors of the supervision tests: tiny topologies that finish, fail, or start processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.actors.messages import Accepted, LearnerStepped, RunFinished
from headrace.transport import Actor, Context, PeerLost, handles, message

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


class StepsAndEnds(Idle):
    """As a learner: `lives` lives of `steps` training steps, which end in the same failure each; then it is done."""

    def __init__(self, *, folder: str, steps: int, lives: int) -> None:
        super().__init__(folder=folder)
        self._steps, self._lives = steps, lives

    async def on_start(self, context: Context) -> None:
        self._mark()
        context.spawn(self._live(context), "live")

    async def _live(self, context: Context) -> None:
        life = len(list(self._folder.glob("mark-*")))
        for step in range(self._steps):
            await context.tell("supervisor", LearnerStepped("train", life * self._steps + step))
        if life > self._lives:
            await context.ask("supervisor", RunFinished("done"), timeout_s=30)
        else:
            raise OSError("no room for version 1")


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


@message("test.who")
@dataclass(frozen=True, slots=True)
class Who:
    """ask → Who with the process id; `forever`: never answered."""

    pid: int = 0
    forever: bool = False


class Sleeper(Actor):
    """Says which process it is, or nothing at all."""

    @handles(Who, concurrent=True)
    async def who(self, message: Who) -> Who:
        if message.forever:
            await asyncio.Event().wait()
        return Who(os.getpid())


class Killer(Actor):
    """Kills sleepers while it waits for them, `kills` times in turn; leaves the seconds from kill to error in
    `folder`/seconds.json, and ends the run."""

    def __init__(self, *, folder: str, sleepers: int, kills: int) -> None:
        self._folder, self._sleepers, self._kills = Path(folder), sleepers, kills

    async def on_start(self, context: Context) -> None:
        context.spawn(self._run(), "kill")

    async def _run(self) -> None:
        await self.context.group("sleeper").wait_for(self._sleepers, timeout_s=100)
        seconds = [await self._kill(f"sleeper/{i % self._sleepers}") for i in range(self._kills)]
        (self._folder / "seconds.json").write_text(json.dumps(seconds))
        await self.context.ask("supervisor", RunFinished("all killed"), timeout_s=30)

    async def _kill(self, sleeper: str) -> float:
        pid = (await self.context.ask(sleeper, Who(), timeout_s=100)).pid
        waiting = asyncio.ensure_future(self.context.ask(sleeper, Who(forever=True), timeout_s=100))
        await self.context.ask(sleeper, Who(), timeout_s=100)  # the other is there by now
        began_s = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(PeerLost):
            await waiting
        return time.perf_counter() - began_s


class Chatter(Actor):
    """Prints `lines` numbered lines each from logging, print and C, and is killed in the middle of the next."""

    def __init__(self, *, lines: int) -> None:
        self._lines = lines

    async def on_start(self, context: Context) -> None:
        write = ctypes.CDLL(None).dprintf
        for i in range(self._lines):
            logging.getLogger("headrace.chatter").error("logged %d", i)
            print("printed", i)
            write(2, b"from C %d\n", i)
        print("half a line", end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


class CrashesAtOnce(Actor):
    """Its constructor raises."""

    def __init__(self) -> None:
        raise ZeroDivisionError("the constructor's own words")


class NeverUp(Idle):
    """Hangs in on_start in its first life."""

    async def on_start(self, context: Context) -> None:
        first = not list(self._folder.glob("mark-*"))
        self._mark()
        if first:
            await asyncio.Event().wait()


class Pours(Actor):
    """Sends 8 MiB arrays to `sink/0` without a pause."""

    async def on_start(self, context: Context) -> None:
        context.spawn(self._pour(), "pour")

    async def _pour(self) -> None:
        while True:
            await self.context.ask("sink", Poured(np.zeros(1 << 20)), timeout_s=60)


@message("test.poured")
@dataclass(frozen=True, slots=True, eq=False)
class Poured:
    values: np.ndarray


class Sink(Idle):
    """Leaves a mark at the first array."""

    async def on_start(self, context: Context) -> None:
        pass

    @handles(Poured)
    async def poured(self, message: Poured) -> Accepted:
        self._mark()
        return Accepted()


class Leaver(Actor):
    """Whose constructor ends the process."""

    def __init__(self, *, how: str) -> None:
        if how == "sys_exit":
            sys.exit(0)
        os._exit(0)
