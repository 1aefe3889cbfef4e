"""What a process of a run does around its actors."""

from __future__ import annotations

import signal
import subprocess
import sys

CHILD = """
import os, sys, threading, time
from headrace.launch.serving import begin

def wait_in_a_thread():
    print("up", flush=True)
    time.sleep(60)

begin(os.getppid())
threading.Thread(target=wait_in_a_thread, daemon=True).start()
print(sys.stdin.readline(), flush=True)
"""


def test_sigusr1_writes_the_stacks_of_all_threads_and_harms_nothing() -> None:
    """For whoever finds a process that does not answer any more: its log then says where it stands."""
    command = [sys.executable, "-c", CHILD]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        stacks = ""
        while "<module>" not in stacks:
            stacks += process.stderr.readline()
        assert "in wait_in_a_thread" in stacks
        rest, _ = process.communicate("still here\n", timeout=60)
        assert "still here" in rest
        assert process.returncode == 0
