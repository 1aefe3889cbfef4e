"""Entry point of a node's agent: it owns the run's processes on one machine, and hosts no actor of the run.

    python -m headrace.launch.node RUN_FOLDER NODE PARENT_PID       and two lines of JSON on standard input

The lines: where the directory is and the keys of the run's network (as for process.py), and the restart policy. It
joins the run as `node/NODE` and does what the run's supervisor asks (node_messages.py). However it dies, its processes
die with it: they have the parent-death signal, and its own undertaker kills what they had started. Whoever can run this
command on a machine that sees the run folder can add that machine to a run.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from headrace.launch.environ import launcher_environment
from headrace.launch.node_messages import node_actor
from headrace.launch.node_supervisor import NodeSupervisor
from headrace.launch.process_starter import ProcessStarter
from headrace.launch.run_network import Joining
from headrace.launch.serving import begin, run_and_exit, serve
from headrace.launch.supervisor_state import RestartPolicy
from headrace.launch.undertaker import Undertaker
from headrace.transport import Runtime


def first_lines(joining: Joining, policy: RestartPolicy) -> str:
    """What an agent reads from its standard input."""
    return joining.to_line() + json.dumps(asdict(policy)) + "\n"


def policy_from_json(text: str) -> RestartPolicy:
    fields = json.loads(text)
    restartable = fields.pop("restartable")
    return RestartPolicy(restartable=None if restartable is None else tuple(restartable), **fields)


async def supervise(folder: Path, node: str, joining: Joining, policy: RestartPolicy) -> int:
    """Supervise the node until SIGTERM; then its processes are gone."""
    undertaker = Undertaker()
    starter = ProcessStarter(
        folder,
        joining=lambda incarnation: replace(joining, incarnation=incarnation),
        undertaker=undertaker,
        environment=launcher_environment(),
    )
    runtime = joining.runtime()
    code = await serve(runtime, _add(runtime, NodeSupervisor(node=node, policy=policy, start=starter), node))
    undertaker.dismiss()
    return code


async def _add(runtime: Runtime, supervisor: NodeSupervisor, node: str) -> None:
    await runtime.add(supervisor, node_actor(node))


def main() -> None:
    folder, node, parent_pid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    begin(parent_pid)
    joining = Joining.from_json(json.loads(sys.stdin.readline()))
    policy = policy_from_json(sys.stdin.readline())
    run_and_exit(supervise(folder, node, joining, policy))


if __name__ == "__main__":
    main()
