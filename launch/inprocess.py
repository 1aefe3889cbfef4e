"""The whole topology in one process and on one event loop, for debugging and tests. Config: launch=inprocess.

The same actors and the same messages; no supervision (the first failure ends the run with its traceback), no
processes to kill. With `encode_local` messages pass through the codec as they would between processes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from headrace.launch.environ import launcher_environment, library_settings, set_for_this_process
from headrace.launch.job import Job, Outcome
from headrace.launch.process import make_actor
from headrace.launch.run_end import NAME, RunEnd
from headrace.launch.shared_memory import remove_run
from headrace.launch.start_order import DEFAULT_ORDER, in_start_order
from headrace.launch.supervisor import launcher_failure
from headrace.transport import Runtime
from headrace.transport.errors import TransportError


class InProcessLauncher:
    """`max_wall_s`: end the run (as a failure) where it takes longer; None never does."""

    def __init__(
        self,
        *,
        encode_local: bool = False,
        max_wall_s: float | None = None,
        start_order: Sequence[str] = DEFAULT_ORDER,
    ) -> None:
        if max_wall_s is not None and not max_wall_s > 0:
            raise ValueError(f"launch.max_wall_s must be > 0 or null, got {max_wall_s}")
        self._encode_local = encode_local
        self._max_wall_s = max_wall_s
        self._start_order = tuple(start_order)

    async def launch(self, job: Job) -> Outcome:
        """See job.Launcher."""
        logging.getLogger("headrace").setLevel(logging.INFO)  # the actors' lines are this process's own
        set_for_this_process(library_settings(launcher_environment(), offline=True))
        loop = asyncio.get_running_loop()
        end: asyncio.Future[Outcome] = loop.create_future()

        def finish(outcome: Outcome) -> None:
            if not end.done():
                end.set_result(outcome)

        with _signals(finish):
            runtime = Runtime(encode_local=self._encode_local)
            await runtime.start()
            await runtime.add(RunEnd(on_finished=lambda reason: finish(Outcome("finished", reason))), NAME)
            try:
                return await self._run(job, runtime, end)
            finally:
                await runtime.stop()
                remove_run(job.run_id)

    async def _run(self, job: Job, runtime: Runtime, end: asyncio.Future[Outcome]) -> Outcome:
        """Actors start while others run already: an on_start may ask one that was started before it."""
        starting = asyncio.ensure_future(self._start(job, runtime))
        ends: list[asyncio.Future[Any]] = [end, runtime.failed]
        await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED, timeout=self._max_wall_s)
        if starting.done() and not starting.exception():
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=self._max_wall_s)
        failure = runtime.failed.exception() if runtime.failed.done() else None
        failure = failure or (starting.exception() if starting.done() else None)
        starting.cancel()
        if end.done():
            return end.result()
        if failure is not None:
            return (
                Outcome("failed", str(failure))
                if isinstance(failure, TransportError)
                else launcher_failure("a start", failure)
            )
        return Outcome("failed", f"the run was not finished within launch.max_wall_s={self._max_wall_s}")

    async def _start(self, job: Job, runtime: Runtime) -> None:
        for process in in_start_order(job.processes, self._start_order):
            for name in process.actors:
                await runtime.add(make_actor(job.config, name), name)
                job.console.say(f"{name} is up")
        job.console.say("all actors are up")


@contextmanager
def _signals(finish: Callable[[Outcome], None]) -> Iterator[None]:
    """SIGINT and SIGTERM end the run, where this loop takes signals (a loop of the main thread, in real time)."""
    loop = asyncio.get_running_loop()
    taken: list[signal.Signals] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        outcome = Outcome("interrupted" if number is signal.SIGINT else "terminated", f"{number.name} to the launcher")
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, finish, outcome)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
