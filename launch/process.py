"""Entry point of a child process: one runtime, its actors, until it is told to stop. Started by the local launcher.

    python -m headrace.launch.process RUN_FOLDER PROCESS_NAME PARENT_PID       and one line of JSON on standard input

Exit code 0: stopped as asked (SIGTERM). 1: an actor failed; its traceback is in the log. The line on standard input
holds where the directory is and the keys of the run's network, which do not belong on a command line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from hydra.utils import instantiate

from headrace.launch.parent_death import die_with_parent
from headrace.launch.run_folder import read_config
from headrace.launch.run_network import Joining
from headrace.launch.topology import ProcessPlan, plan_topology, roles_of
from headrace.transport import Actor, Runtime
from headrace.transport.errors import ActorFailed

log = logging.getLogger("headrace.process")


def make_actor(config: Mapping[str, Any], name: str) -> Actor:
    """Build the actor `role/index` from its role's configuration; containers are plain dicts and lists."""
    actor = instantiate(dict(config[name.partition("/")[0]]), _convert_="all")
    if not isinstance(actor, Actor):
        raise TypeError(f"{name}: {type(actor).__name__} is no subclass of headrace.transport.Actor")
    return actor


async def add_actors(runtime: Runtime, config: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        await runtime.add(make_actor(config, name), name)
        log.info("%s is up", name)


async def serve(runtime: Runtime, config: Mapping[str, Any], process: ProcessPlan) -> int:
    """Host the process's actors until SIGTERM (0) or until one of them fails (1)."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, _resolve, stopping)
    await runtime.start()
    starting = asyncio.ensure_future(add_actors(runtime, config, process.actors))
    # SIGTERM during a long on_start ends the process without waiting for it
    ends: list[asyncio.Future[Any]] = [stopping, runtime.failed]
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
    await runtime.stop(reason="failed" if failure else "the run is ending")
    return 1 if failure else 0


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def find_process(config: Mapping[str, Any], name: str) -> ProcessPlan:
    processes, _ = plan_topology(config["topology"], roles_of(config))
    return next(process for process in processes if process.name == name)


def main() -> None:
    folder, name, parent_pid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides; see supervisor.py
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    joining = Joining.from_json(json.loads(sys.stdin.readline()))
    config = read_config(folder)
    runtime = joining.runtime()
    code = uvloop.new_event_loop().run_until_complete(serve(runtime, config, find_process(config, name)))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that hangs must not keep the process; on_stop has closed what needs closing


if __name__ == "__main__":
    main()
