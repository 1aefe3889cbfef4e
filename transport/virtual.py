"""An event loop with virtual time: hours of timers in milliseconds, in the same order every time.

When nothing is ready the loop jumps to the next timer; when there is no timer either, everything waits for nothing and
`Deadlock` names the waiting tasks. Functions given to an executor run inline, so a test has no threads. With a
`Schedule` the processes that share the loop are interleaved by its seed. Used by tests and by in-process runs; never
by a process that talks to another one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.transport.schedule import ScatteredQueue, Schedule

T = TypeVar("T")

_POLL_EVERY = 256
"""Turns of a loop without sockets between two looks at its wake-up pipe, which only must not fill up."""


class Deadlock(RuntimeError):
    """Every task waits and no timer is set: nothing can ever happen again."""


class _TimeJumpingSelector(selectors.DefaultSelector):
    """Never sleeps: where the loop would wait `timeout` seconds, its virtual time advances by that much."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns += 1
        if len(self.get_map()) > 1 or self._turns % _POLL_EVERY == 0 or timeout is None:
            events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
            if events:
                return events
        if timeout is None:
            waiting = "\n".join(f"  {_describe(task)}" for task in asyncio.all_tasks(asyncio.get_running_loop()))
            raise Deadlock(f"everything waits and no timer is set; the waiting tasks:\n{waiting}")
        self.now += max(timeout, 0.0)
        return []


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack()
    where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not started"
    return f"{task.get_name()} at {where}"


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop over a selector that jumps in time."""

    def __init__(self, schedule: Schedule | None = None) -> None:
        self._jumper = _TimeJumpingSelector()
        super().__init__(self._jumper)
        if schedule is not None:
            self._ready = ScatteredQueue(schedule)

    def time(self) -> float:
        return self._jumper.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs `func` at once, on this thread."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, T], *, schedule: Schedule | None = None) -> T:
    """Run `main` to its end on a fresh virtual-time loop and return its result. Raises what it raises, or Deadlock."""
    loop = VirtualTimeLoop(schedule)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_all(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
