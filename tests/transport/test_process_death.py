"""Real processes over ZeroMQ: SIGKILL ends what waits for the dead one, and stopping leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.transport import PeerLost, RemoteError, Runtime, UnknownActor, ZmqNetwork

CHILD = """
from __future__ import annotations
import asyncio, os, sys
from dataclasses import dataclass
from headrace.transport import Actor, Runtime, ZmqNetwork, handles, message

@message("test.nap")
@dataclass(frozen=True, slots=True)
class Nap:
    seconds: float

@message("test.say")
@dataclass(frozen=True, slots=True)
class Say:
    text: str

class Child(Actor):
    @handles(Nap, concurrent=True)
    async def nap(self, message: Nap) -> Say:
        await asyncio.sleep(message.seconds)
        return Say("rested")

    @handles(Say)
    async def say(self, message: Say) -> Say:
        if message.text == "exit":
            raise SystemExit(3)
        return Say(str(os.getpid()))

async def main():
    runtime = Runtime(ZmqNetwork(ipc_folder=sys.argv[2]), directory=sys.argv[1], incarnation=sys.argv[3])
    await runtime.start()
    await runtime.add(Child(), "child/0")
    await runtime.failed

asyncio.run(main())
"""


def start(folder: Path, address: object, incarnation: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(address), str(folder), incarnation])


def watch_exit(process: subprocess.Popen[bytes], runtime: Runtime, incarnation: str) -> int:
    """What a supervisor does: the process's descriptor turns readable the moment it dies."""
    descriptor = os.pidfd_open(process.pid)

    def died() -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        runtime.directory.process_down(incarnation, f"exited with {process.wait()}")

    asyncio.get_running_loop().add_reader(descriptor, died)
    return descriptor


def test_sigkill_ends_pending_asks_at_once(tmp_path: Path, samples: SimpleNamespace) -> None:
    """messaging faults 4, 8, 20: nothing of the dead process's traffic reaches the one restarted under its name."""

    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)))
        await host.start()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for incarnation in ("one", "two"):
                process = start(tmp_path, host.address, incarnation)
                processes.append(process)
                watch_exit(process, host, incarnation)
                asks = [host.context.ask("child/0", samples.Nap(60), timeout_s=60) for _ in range(20)]
                pending = [asyncio.ensure_future(ask) for ask in asks]
                reply = await host.context.ask("child/0", samples.Say("who"), timeout_s=60)
                assert reply.text == str(process.pid)
                killed_s = time.perf_counter()
                process.send_signal(signal.SIGKILL)
                for ask in pending:
                    with pytest.raises(PeerLost, match=f"incarnation {incarnation}.*exited with -9"):
                        await ask
                assert time.perf_counter() - killed_s < 2.0
                with pytest.raises(UnknownActor):
                    await host.context.ask("child/0", samples.Say("who"), timeout_s=0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            began_s = time.perf_counter()
            await host.stop()
            # cases I121: an unsent message to a peer that is gone does not hang the exit
            assert time.perf_counter() - began_s < 3.0

    asyncio.run(main())
    leftovers = [path for path in tmp_path.rglob("*") if path.is_socket() and "one" not in path.name]
    assert len(leftovers) <= 4, "only the killed processes' own sockets may remain; the host removed its own"


def test_an_exit_in_a_handler_is_told_to_its_asker(tmp_path: Path, samples: SimpleNamespace) -> None:
    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)))
        await host.start()
        process = start(tmp_path, host.address, "one")
        try:
            watch_exit(process, host, "one")
            with pytest.raises((RemoteError, PeerLost), match=r"SystemExit|exited with"):
                await host.context.ask("child/0", samples.Say("exit"), timeout_s=60)
            assert process.wait(timeout=20) != 0
        finally:
            process.kill()
            process.wait()
            await host.stop()

    asyncio.run(main())


def test_a_stopped_runtime_leaves_no_socket_file(tmp_path: Path) -> None:
    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)))
        await host.start()
        folders = list(tmp_path.iterdir())  # noqa: ASYNC240
        assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700]
        assert len(list(folders[0].iterdir())) == 2
        await host.stop()

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_networks_that_cannot_work_are_refused(tmp_path: Path) -> None:
    for bind, text in (
        ("udp://x", 'must be "ipc"'),
        ("tcp://0.0.0.0", "wildcard"),
        ("tcp://no.such.host.invalid", "address"),
    ):
        with pytest.raises(ValueError, match=text):
            ZmqNetwork(bind=bind)
    long = tmp_path / ("x" * 100)
    long.mkdir()

    async def main() -> None:
        runtime = Runtime(ZmqNetwork(ipc_folder=str(long)))
        with pytest.raises(Exception, match="longer than 107 bytes"):
            await runtime.start()
        await runtime.stop()

    asyncio.run(main())
