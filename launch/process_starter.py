"""How a node's processes come to be: the command line, the environment, the log file, the line that tells them where to
join. Called by node_supervisor.py, on the machine and in the process that will be their parent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from headrace.launch.child import Child
from headrace.launch.environ import child_environment
from headrace.launch.run_network import Joining
from headrace.launch.topology import ProcessPlan
from headrace.launch.undertaker import Undertaker

PROCESS = "headrace.launch.process"


class ProcessStarter:
    """`environment` is what the processes' variables are made from; `joining` gives what a new incarnation is told."""

    def __init__(
        self,
        folder: Path,
        *,
        joining: Callable[[str], Joining],
        undertaker: Undertaker,
        environment: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._joining = joining
        self._undertaker = undertaker
        self._environment = environment

    def __call__(self, plan: ProcessPlan, incarnation: str) -> Child:
        joining = replace(self._joining(incarnation), node=plan.node)
        child = Child(
            [sys.executable, "-m", PROCESS, str(self._folder), plan.name, str(os.getpid()), *plan.actors],
            environment=child_environment(self._environment, plan, offline=True, private_folder=joining.ipc_folder),
            log=self._folder / "logs" / f"{plan.name}.log",
            first_line=joining.to_line(),
        )
        self._undertaker.watch_session(child.pid)
        return child
