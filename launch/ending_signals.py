"""The signals that ask a run to end: Ctrl-C, a service manager's, and that of a terminal that closes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headrace.launch.job import Outcome

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def outcome_of(number: signal.Signals) -> Outcome:
    """How a run ends that one of them ended."""
    return Outcome("interrupted" if number is signal.SIGINT else "terminated", f"{number.name} to the launcher")


@contextmanager
def on_ending_signals(call: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `call(number)` on the event loop for each, where the loop takes signals (one of the main thread, in real
    time)."""
    loop = asyncio.get_running_loop()
    taken: list[signal.Signals] = []
    for number in ENDING_SIGNALS:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, call, number)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
