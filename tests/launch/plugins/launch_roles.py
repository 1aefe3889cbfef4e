"""A launcher in a process of its own, for tests that signal it:  python launch_roles.py FOLDER JSON

JSON: {"topology": …, "roles": {role: config, …}, "launch": {argument of LocalLauncher: value, …}}; RUN_ID in it is the
launcher's own. Its exit code is the run's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from headrace.launch.console import Console
from headrace.launch.job import Job
from headrace.launch.local import LocalLauncher
from headrace.launch.run_folder import write_config
from headrace.launch.shared_memory import run_id
from headrace.launch.topology import plan_topology, roles_of


def main() -> int:
    folder = Path(sys.argv[1])
    given = json.loads(sys.argv[2].replace("RUN_ID", run_id()))
    config = {"topology": given["topology"], **given["roles"]}
    (folder / "logs").mkdir()
    write_config(folder, config)
    processes, problems = plan_topology(config["topology"], roles_of(config))
    assert not problems, problems
    console = Console()
    console.keep(folder / "logs" / "console.log")
    job = Job(folder, run_id(), config, processes, console)
    outcome = asyncio.run(LocalLauncher(**given["launch"]).launch(job))
    print(json.dumps({"ending": outcome.ending, "reason": outcome.reason, "restarts": dict(outcome.restarts)}))
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
