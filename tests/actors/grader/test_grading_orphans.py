"""The actor's process dies by SIGKILL while a grading runs: its warden and the child follow."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

HOST = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from hostile_gradings import Obedient
from headrace.actors.grader.worker_pool import WorkerPool
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task, Trajectory

def session(text):
    spec = SessionSpec("s", "g", 0, "train", Task("t", "x", ()), Sampling())
    one = np.zeros(1, np.int32)
    messages = (ChatMessage("assistant", text),)
    return Trajectory(spec, one, one.astype(np.float32), one.astype(bool), one, (), messages, "done")

async def main():
    pool = WorkerPool(Obedient(), num_workers=1, timeout_s=600)
    grade = await pool.grade(session("fine"))
    print(grade.notes["pid"], flush=True)
    await pool.grade(session("spin 600"))

asyncio.run(main())
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_no_orphan_outlives_the_actor() -> None:
    """cases G106 in kind: the launcher's and every actor's death reaches the grading children within seconds."""
    hostile = str(Path(__file__).parent / "hostile")
    host = subprocess.Popen([sys.executable, "-c", HOST, hostile], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    child = int(host.stdout.readline())
    warden = parent_of(child)
    watched = [os.pidfd_open(pid) for pid in (child, warden)]
    host.kill()
    host.wait()
    host.stdout.close()
    try:
        for descriptor in watched:
            ready, _, _ = select.select([descriptor], [], [], 5.0)
            assert ready, "a grading process outlived its actor"
    finally:
        for descriptor in watched:
            os.close(descriptor)
