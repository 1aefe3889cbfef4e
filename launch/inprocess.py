"""The whole topology in one process and on one event loop: for debuggers, and for runs that repeat. launch=inprocess.

Every process of the topology is a runtime of its own on a network in memory: the same actors, messages, links and
credits as in separate processes. There is no supervision: the first failure ends the run with its traceback. With
`clock=virtual` no time passes in waiting and the order of everything is fixed, or drawn from `schedule_seed`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar, get_args

from headrace.launch.ending_signals import on_ending_signals, outcome_of
from headrace.launch.environ import launcher_environment, library_settings, set_for_this_process
from headrace.launch.for_console import packages_of
from headrace.launch.job import Job, Outcome
from headrace.launch.process import make_actor
from headrace.launch.run_end import NAME, RunEnd
from headrace.launch.shared_memory import remove_run
from headrace.launch.start_order import DEFAULT_ORDER, in_start_order
from headrace.launch.supervisor import launcher_failure
from headrace.transport import Actor, LoopbackNetwork, Runtime, run_virtual
from headrace.transport.errors import TransportError
from headrace.transport.schedule import PROCESS, Schedule

T = TypeVar("T")
Clock = Literal["real", "virtual"]

LAUNCHER = "launcher"
POLL_S = 0.2
VIRTUAL_DAY_S = 86_400.0
"""A run in virtual time that stands still keeps its clocks running: past this much of it, it is ended."""


class InProcessLauncher:
    """`clock`: "virtual" runs waits at once; for engines and environments that wait rather than compute.
    `schedule_seed`: with the virtual clock, delays each message and interleaves the processes as this seed has it; None
    keeps the plain order. `encode_local`: messages inside one process of the topology pass through the codec too.
    `max_wall_s`: end the run (as a failure) where it takes longer by its clock; None never does (in virtual time: after
    a day)."""

    def __init__(
        self,
        *,
        clock: Clock = "real",
        schedule_seed: int | None = None,
        encode_local: bool = False,
        max_wall_s: float | None = None,
        start_order: Sequence[str] = DEFAULT_ORDER,
    ) -> None:
        if clock not in get_args(Clock):
            raise ValueError(f"launch.clock must be one of {', '.join(get_args(Clock))}, got {clock!r}")
        if schedule_seed is not None and schedule_seed < 0:
            raise ValueError(f"launch.schedule_seed must be >= 0 or null, got {schedule_seed}")
        if schedule_seed is not None and clock != "virtual":
            raise ValueError(
                f"launch.schedule_seed needs launch.clock=virtual, got clock={clock} and seed {schedule_seed}; "
                "set the clock, or leave the seed null"
            )
        if max_wall_s is not None and not max_wall_s > 0:
            raise ValueError(f"launch.max_wall_s must be > 0 or null, got {max_wall_s}")
        self._clock = clock
        self._schedule_seed = schedule_seed
        self._encode_local = encode_local
        self._max_wall_s = VIRTUAL_DAY_S if max_wall_s is None and clock == "virtual" else max_wall_s
        self._start_order = tuple(start_order)

    async def launch(self, job: Job) -> Outcome:
        """See job.Launcher. A virtual-time loop cannot run inside this one: it has a thread of its own."""
        for package in packages_of(job.config):  # the actors' lines are this process's own
            logging.getLogger(package).setLevel(logging.INFO)
        set_for_this_process(library_settings(launcher_environment(), offline=True))
        schedule = None if self._schedule_seed is None else Schedule(self._schedule_seed)
        run = OneLoop(job, schedule, encode_local=self._encode_local, max_wall_s=self._max_wall_s)
        try:
            with on_ending_signals(lambda number: run.interrupt(outcome_of(number))):
                if self._clock == "virtual":
                    main = run.main(self._start_order)
                    return await asyncio.to_thread(run_virtual, main, schedule=schedule)
                return await run.main(self._start_order)
        finally:
            remove_run(job.run_id)


class OneLoop:
    """One run: its runtimes, started in order, until the first of its ends."""

    def __init__(self, job: Job, schedule: Schedule | None, *, encode_local: bool, max_wall_s: float | None) -> None:
        self._job = job
        self._network = LoopbackNetwork(schedule=schedule)
        self._encode_local = encode_local
        self._max_wall_s = max_wall_s
        self._runtimes: dict[str, Runtime] = {}
        self._outcome: Outcome | None = None

    def interrupt(self, outcome: Outcome) -> None:
        """End the run. May be called from another thread: the loop looks every POLL_S."""
        self._outcome = self._outcome or outcome

    async def main(self, order: Sequence[str]) -> Outcome:
        """Actors start while others run already: an on_start may ask one that was started before it."""
        starting = asyncio.ensure_future(self._start(order))
        loop = asyncio.get_running_loop()
        give_up_s = float("inf") if self._max_wall_s is None else loop.time() + self._max_wall_s
        try:
            while self._outcome is None and loop.time() < give_up_s:
                failed: list[asyncio.Future[Any]] = [runtime.failed for runtime in self._runtimes.values()]
                failed += [] if starting.done() and not starting.exception() else [starting]
                await asyncio.wait(failed, return_when=asyncio.FIRST_COMPLETED, timeout=POLL_S)
                self._look_for_failures(starting)
        finally:
            starting.cancel()
            for name in reversed(self._runtimes):
                await _in(name, self._runtimes[name].stop())
        text = f"the run was not finished within launch.max_wall_s={self._max_wall_s}"
        return self._outcome or Outcome("failed", text)

    def _look_for_failures(self, starting: asyncio.Future[None]) -> None:
        ended = [runtime.failed for runtime in self._runtimes.values() if runtime.failed.done()]
        futures: list[asyncio.Future[Any]] = [*ended, starting]
        errors = [future.exception() for future in futures if future.done()]
        for error in errors:
            if isinstance(error, TransportError):
                self.interrupt(Outcome("failed", str(error)))
            elif error is not None:
                self.interrupt(launcher_failure("a start", error))

    async def _start(self, order: Sequence[str]) -> None:
        host = await self._add_runtime(LAUNCHER, None)
        end = RunEnd(on_finished=lambda reason: self.interrupt(Outcome("finished", reason)))
        await _in(LAUNCHER, host.add(end, NAME))
        for process in in_start_order(self._job.processes, order):
            runtime = await self._add_runtime(process.name, str(host.address), node=process.node)
            for name in process.actors:
                await _in(process.name, self._add_actor(runtime, name))
                self._job.console.say(f"{name} is up")
        self._job.console.say("all actors are up")

    async def _add_runtime(self, process: str, directory: str | None, *, node: str = "") -> Runtime:
        runtime = Runtime(
            self._network, directory=directory, incarnation=process, encode_local=self._encode_local, node=node
        )
        await _in(process, runtime.start())
        self._runtimes[process] = runtime
        return runtime

    async def _add_actor(self, runtime: Runtime, name: str) -> None:
        actor: Actor = make_actor(self._job.config, name)
        await runtime.add(actor, name)


def _in(process: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run it as the work of that process of the topology: whatever it begins belongs there too."""
    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    return asyncio.get_running_loop().create_task(work, name=process, context=context)
