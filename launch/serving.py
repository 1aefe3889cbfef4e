"""What every process that the launcher starts does around its actors: tie its life to its parent's, log, serve until
SIGTERM or a failure, and leave. Called by process.py and node.py.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from io import TextIOWrapper
from typing import Any, NoReturn

import uvloop

from headrace.launch.descriptors import raise_descriptor_limit
from headrace.launch.parent_death import die_with_parent
from headrace.transport import Runtime
from headrace.transport.errors import ActorFailed

log = logging.getLogger("headrace.process")


def begin(parent_pid: int) -> None:
    """First thing in the process."""
    die_with_parent(parent_pid)
    raise_descriptor_limit()
    # SIGUSR1 writes the stack of each thread into the log, also while C code keeps the interpreter's lock.
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides; see supervisor.py
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)  # a line is one write: lines stay whole
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )


async def serve(runtime: Runtime, add_actors: Coroutine[Any, Any, None]) -> int:
    """Start the runtime, then the actors; serve until SIGTERM or until it has left the run as asked (0), or until one
    of them fails (1)."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, _resolve, stopping)
    await runtime.start()
    starting = asyncio.ensure_future(add_actors)
    # SIGTERM during a long on_start ends the process without waiting for it
    ends: list[asyncio.Future[Any]] = [stopping, runtime.failed, runtime.left]
    await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED)
    if starting.done() and not starting.exception():
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    failure = runtime.failed.exception() if runtime.failed.done() else None
    if failure is None and starting.done():
        failure = starting.exception()
    if failure is not None:
        # the runtime has logged an actor's failure already
        log.error(
            "stopping: %s", str(failure).splitlines()[0], exc_info=None if isinstance(failure, ActorFailed) else failure
        )
    starting.cancel()
    left = "it left the run" if runtime.left.done() else "the run is ending"
    await runtime.stop(reason="failed" if failure else left)
    return 1 if failure else 0


def run_and_exit(main: Coroutine[Any, Any, int]) -> NoReturn:
    """Run to the end and exit with its code."""
    code = uvloop.new_event_loop().run_until_complete(main)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that hangs must not keep the process; on_stop has closed what needs closing


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
