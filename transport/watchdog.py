"""Who holds the event loop: a thread that watches the loop's beat and names the handler that keeps it from turning.

The loop sets the time of its beat a few times a second; the thread looks as often, and speaks while the loop is held,
not only afterwards: at `warn_s`, then at rising intervals, with the stack of the loop's thread. A step that ended after
holding the loop for long is told with how long it took in all. Blocked loops are warned about, never killed: what
lasts is the affair of the directory's `silence_s`.

The thread itself needs the interpreter's lock. While C code holds that, or the process is stopped, nobody here can
speak; that is told afterwards. Where no actor's code runs, a loaded machine is the likelier cause: that is spoken of
from the second interval on only. Started by the runtime, one for each event loop in real time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from headrace.transport.stacks import thread_stack

logger = logging.getLogger(__name__)

DEFAULT_WARN_S = 1.0
_LOOKS_PER_WARNING = 4
_RISE = 5.0


class LagWatch:
    """When a loop that does not beat is to be spoken of: at `warn_s`, then each time after `_RISE` times as long. Pure;
    times in seconds of one clock."""

    def __init__(self, warn_s: float) -> None:
        self._warn_s = warn_s
        self._next_s = warn_s
        self._held_since_s: float | None = None

    def look(self, now_s: float, beat_s: float) -> float | None:
        """How long the loop has not beaten, where that is to be told now."""
        held_s = now_s - beat_s
        if held_s < self._next_s:
            return None
        while self._next_s <= held_s:
            self._next_s *= _RISE
        self._held_since_s = beat_s
        return held_s

    def turned(self, beat_s: float) -> float | None:
        """How long an episode that was told of has lasted, once, when the loop beats again."""
        since_s = self._held_since_s
        if since_s is None or beat_s <= since_s:
            return None
        self._held_since_s, self._next_s = None, self._warn_s
        return beat_s - since_s


class Watchdog:
    """`who_runs`: the name of the step that runs now, None where no actor's code does; it is called from the thread.
    Raises ValueError."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, who_runs: Callable[[], str | None], *, warn_s: float = DEFAULT_WARN_S
    ) -> None:
        check_warn_s(warn_s)
        self._loop = loop
        self._who_runs = who_runs
        self._warn_s = warn_s
        self._every_s = warn_s / _LOOKS_PER_WARNING
        self._patience_s = _RISE * warn_s
        self._watch = LagWatch(warn_s)
        self._has_told = False
        self._slow_steps: deque[tuple[str, float]] = deque(maxlen=100)
        self._stopped = threading.Event()
        self._beat_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = 0

    def start(self) -> None:
        """Called on the loop."""
        self._loop_thread = threading.get_ident()
        self._beat()
        threading.Thread(target=self._run, name="event-loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Called on the loop. Idempotent."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def slow_step(self, name: str, took_s: float) -> None:
        """That step has ended; called on the loop for what took long. The thread tells of it."""
        self._slow_steps.append((name, took_s))

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self._timer = self._loop.call_later(self._every_s, self._beat)

    # --- the thread's side ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._stopped.wait(self._every_s) and not self._loop.is_closed():
            now_s = time.monotonic()
            stood_still_s, looked_s = now_s - looked_s - self._every_s, now_s
            if stood_still_s >= self._warn_s:
                self._tell_standstill(stood_still_s)
            elif self._loop.is_running():
                self._look(now_s)
        self._tell_slow_steps()

    def _look(self, now_s: float) -> None:
        beat_s = self._beat_s
        was_named = self._tell_slow_steps()
        lasted_s = self._watch.turned(beat_s)
        if lasted_s is not None and self._has_told:
            self._has_told = False
            if not was_named:
                logger.warning("the event loop turns again, after %.1f s", lasted_s)
        held_s = self._watch.look(now_s, beat_s)
        if held_s is not None:
            self._tell_held(held_s)

    def _tell_held(self, held_s: float) -> None:
        running = self._who_runs()
        if running is None and held_s < self._patience_s:
            return
        self._has_told = True
        logger.warning(
            "%s has held the event loop for %.1f s; nothing else in this process goes on meanwhile. It stands at\n%s",
            running or "code outside of the actors' handlers",
            held_s,
            "\n".join(f"    {line}" for line in thread_stack(self._loop_thread)),
        )

    def _tell_slow_steps(self) -> bool:
        told = False
        while self._slow_steps:
            told = True
            name, took_s = self._slow_steps.popleft()
            logger.warning("%s held the event loop for %.1f s; move it to context.run_blocking", name, took_s)
        return told

    def _tell_standstill(self, seconds: float) -> None:
        """Not even this thread ran. The loop has its chance to beat before it is judged."""
        running = self._who_runs()
        if running is None and seconds < self._patience_s:
            return
        logger.warning(
            "this process stood still for %.1f s%s: it was stopped or starved, or C code kept the interpreter's lock",
            seconds,
            f" in {running}" if running else "",
        )


def check_warn_s(warn_s: float) -> None:
    if not warn_s > 0:
        raise ValueError(f"lag_warn_s must be > 0 seconds, got {warn_s}; how long a handler may hold the event loop")
