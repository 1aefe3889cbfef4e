"""Entry point of a process of actors: one runtime, its actors, until it is told to stop. Its parent supervises a node.

    python -m headrace.launch.process RUN_FOLDER PROCESS_NAME PARENT_PID       and one line of JSON on standard input

Exit code 0: stopped as asked (SIGTERM). 1: an actor failed; its traceback is in the log. The line on standard input
holds where the directory is and the keys of the run's network, which do not belong on a command line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from headrace.launch.run_folder import read_config
from headrace.launch.run_network import Joining
from headrace.launch.serving import begin, run_and_exit, serve
from headrace.launch.topology import ProcessPlan, plan_topology, roles_of
from headrace.transport import Actor, Runtime

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


def find_process(config: Mapping[str, Any], name: str) -> ProcessPlan:
    processes, _ = plan_topology(config["topology"], roles_of(config))
    return next(process for process in processes if process.name == name)


def main() -> None:
    folder, name, parent_pid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    begin(parent_pid)
    joining = Joining.from_json(json.loads(sys.stdin.readline()))
    config = read_config(folder)
    runtime = joining.runtime()
    run_and_exit(serve(runtime, add_actors(runtime, config, find_process(config, name).actors)))


if __name__ == "__main__":
    main()
