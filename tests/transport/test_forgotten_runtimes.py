"""A port that nobody closed (a test that failed half-way, a script's mistake) must not hang its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, gc
from headrace.transport import ZmqNetwork
from headrace.transport.network import Lane

async def main():
    network = ZmqNetwork()
    one = await network.open("one", lambda lane, frames: None)
    other = await network.open("other", lambda lane, frames: None)
    one.send(other.address, Lane.CONTROL, [b"hello"])
    one.itself = one

asyncio.run(main())
for _ in range(3):
    gc.collect()
print("collected")
"""


def test_the_collector_does_not_wait_for_sockets_that_are_still_open(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # nobody closes the ports: their folders stay
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.stdout == "collected\n", done.stderr
    assert done.returncode == 0
