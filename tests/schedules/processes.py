"""Processes on one virtual-time loop: each a runtime of its own, with links, credits and a life that can be ended.

The first one hosts the directory and stands for the launcher. `kill` is SIGKILL: nothing more leaves the process, no
`on_stop` runs, and the launcher hears of it a little later.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.transport import Actor, LoopbackNetwork, Runtime
from headrace.transport.schedule import PROCESS

LAUNCHER = "launcher"


class Process:
    """One life of an actor: its runtime, and the context in which everything of it runs."""

    def __init__(self, name: str, life: int, network: LoopbackNetwork, directory: str | None) -> None:
        self.name = name
        self.incarnation = f"{name}.{life}"
        self.runtime = Runtime(network, directory=directory, incarnation=self.incarnation)
        self.actor: Actor | None = None
        self.settled = asyncio.Event()
        """it is up, or will never be"""
        self.killed = False
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self.incarnation)

    def run(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task of this process."""
        return asyncio.get_running_loop().create_task(
            coroutine, name=f"{self.incarnation}:{name}", context=self._context
        )

    def later(self, delay_s: float, function: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_later(delay_s, function, *args, context=self._context)

    async def bury(self) -> None:
        """Take the tasks of a killed process off the loop."""
        for cell in list(self.runtime._cells.values()):
            await cell.close("killed")
        self.runtime._deadlines.close()


class Processes:
    """`living` by name; `failures`: what ended a process by itself, which nothing here should."""

    def __init__(self, network: LoopbackNetwork) -> None:
        self.network = network
        self.living: dict[str, Process] = {}
        self.failures: list[str] = []
        self.num_killed: Counter[str] = Counter()
        self._lives: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def launcher(self) -> Process:
        return self.living[LAUNCHER]

    async def open(self, **actors: Actor) -> None:
        """Start the launcher's process, with actors of its own."""
        process = self._new(LAUNCHER, None)
        await process.run(process.runtime.start(), "start")
        for role, actor in actors.items():
            await process.run(process.runtime.add(actor, f"{role}/0"), f"add {role}")
        process.settled.set()

    def start(self, name: str, make: Callable[[], Actor]) -> Process:
        """Begin a life of the actor `name`; `settled` is set when it is announced."""
        process = self._new(name, str(self.launcher.runtime.address))
        self._keep(process.run(self._bring_up(process, make), "start"))
        return process

    async def _bring_up(self, process: Process, make: Callable[[], Actor]) -> None:
        await process.runtime.start()
        process.runtime.failed.add_done_callback(lambda failed: self._note_failure(process, failed.exception()))
        process.actor = make()
        await process.runtime.add(process.actor, process.name)
        process.settled.set()

    def kill(self, name: str, *, noticed_after_s: float) -> None:
        """SIGKILL; the launcher's directory tells everybody `noticed_after_s` later."""
        process = self.living.pop(name)
        process.killed = True
        process.settled.set()
        self.num_killed[name.partition("/")[0]] += 1
        self.network.cut(process.incarnation)
        prefix = f"{process.incarnation}:"
        for task in [task for task in self._tasks if task.get_name().startswith(prefix)]:
            task.cancel()
        if hasattr(process.runtime, "failed"):
            self._keep(process.run(process.bury(), "bury"))
        down = self.launcher.runtime.directory.process_down
        self.launcher.later(noticed_after_s, down, process.incarnation, "killed by signal 9")

    async def stop(self) -> None:
        """Everyone in good order, the last started first."""
        for name in reversed(list(self.living)):
            process = self.living.pop(name)
            await process.settled.wait()
            await process.run(process.runtime.stop(), "stop")
            self._check_left_over(process)
        for task in list(self._tasks):
            await asyncio.wait([task])

    def _check_left_over(self, process: Process) -> None:
        runtime = process.runtime
        open_calls = [f"{call.name}" for call in runtime._calls._calls.values()]
        if open_calls or len(runtime._deadlines):
            self.failures.append(
                f"{process.name} stopped with open calls {open_calls}, {len(runtime._deadlines)} timers"
            )

    def _new(self, name: str, directory: str | None) -> Process:
        process = Process(name, self._lives[name], self.network, directory)
        self._lives[name] += 1
        self.living[name] = process
        return process

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for process in self.living.values():
                process.settled.set()
            self.failures.append(f"{task.get_name()}: {type(error).__name__}: {error}")

    def _note_failure(self, process: Process, error: BaseException | None) -> None:
        if not process.killed:
            self.failures.append(f"{process.incarnation} ended by itself: {error}")
