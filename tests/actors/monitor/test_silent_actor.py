"""An actor whose process is stopped: the monitor cannot ask it, and says just that."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.messages import Metrics
from headrace.actors.monitor.actor import Monitor
from headrace.transport import Runtime, ZmqNetwork

CHILD = """
import asyncio, sys
from headrace.transport import Actor, Runtime, ZmqNetwork

async def main():
    runtime = Runtime(ZmqNetwork(ipc_folder=sys.argv[1]), directory=sys.argv[2])
    await runtime.start()
    await runtime.add(Actor(), "environment/0")
    await runtime.failed

asyncio.run(main())
"""


def start(folder: Path, host: Runtime) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), str(host.address)])


async def until(condition: Callable[[], bool]) -> None:
    end_s = asyncio.get_running_loop().time() + 60
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, "the condition did not come true"
        await asyncio.sleep(0.02)


@pytest.mark.slow
def test_a_stopped_process_is_named_with_what_to_do(tmp_path: Path) -> None:
    stalls = tmp_path / "stalls.jsonl"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in stalls.read_text().splitlines()] if stalls.exists() else []

    async def main(host: Runtime) -> None:
        await host.start()
        monitor = Monitor(run_dir=str(tmp_path), tensorboard=False, stall_s=2.0, activity_every_s=0.1)
        await host.add(monitor, "monitor/0")
        process = start(tmp_path, host)
        try:
            await until(lambda: "environment/0" in monitor.activity_book.newest)
            process.send_signal(signal.SIGSTOP)
            await host.context.tell("monitor", Metrics("train", "step", 1, {}))
            await until(lambda: len(lines()) == 1)
            told = lines()[0]
            assert (told["kind"], told["culprit"]) == ("silent", "environment/0")
            assert f"its process (pid {process.pid}) is stopped" in told["summary"]
            assert f"kill -USR1 {process.pid}" in told["summary"]
            assert "did not reply within 5 s" in told["actors"]["environment/0"]
            process.send_signal(signal.SIGCONT)
            await host.context.tell("monitor", Metrics("train", "step", 2, {}))
            await until(lambda: "lasted_s" in lines()[-1])
        finally:
            process.kill()
            process.wait()
            await host.stop()

    asyncio.run(main(Runtime(ZmqNetwork(ipc_folder=str(tmp_path)), silence_s=60)))
