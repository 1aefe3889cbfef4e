"""Entry point of a process of actors: one runtime, its actors, until it is told to stop. Its parent supervises a node.

    python -m headrace.launch.process RUN_FOLDER PROCESS_NAME PARENT_PID ACTOR…     and a line of JSON on standard input

Exit code 0: stopped as asked (SIGTERM), or left the run as asked. 1: an actor failed; its traceback is in the log. The
line on standard input holds where the directory is and the keys of the run's network, which do not belong on a command
line.
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


def main() -> None:
    folder, parent_pid, actors = Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4:]
    begin(parent_pid)
    joining = Joining.from_json(json.loads(sys.stdin.readline()))
    config = read_config(folder)
    runtime = joining.runtime()
    run_and_exit(serve(runtime, add_actors(runtime, config, actors)))


if __name__ == "__main__":
    main()
