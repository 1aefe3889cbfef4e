"""Runtimes over real ZeroMQ, and child processes that can be killed, for the tests of each fault in docs/faults.md."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.transport import Runtime, ZmqNetwork

_PEER = Path(__file__).with_name("peer.py")


@pytest.fixture(scope="session")
def peer() -> ModuleType:
    """The module peer.py beside this file; loaded once, since its messages are registered by class."""
    spec = importlib.util.spec_from_file_location("faults_peer", _PEER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["faults_peer"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["ipc", "tcp"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> ZmqNetwork:
    if request.param == "ipc":
        return ZmqNetwork(ipc_folder=str(tmp_path))
    return ZmqNetwork(bind="tcp://127.0.0.1")


@pytest.fixture
def pair() -> Callable[..., Any]:
    """`async with pair(network) as (host, other)`: the directory's runtime and another one."""

    @asynccontextmanager
    async def make(network: ZmqNetwork, **options: Any) -> AsyncIterator[tuple[Runtime, Runtime]]:
        host = Runtime(network, **options)
        await host.start()
        other = Runtime(network, directory=host.address, **options)
        await other.start()
        try:
            yield host, other
        finally:
            await other.stop()
            await host.stop()

    return make


class Children:
    """Child processes of one test: started as peer.py, watched as a supervisor watches them, killed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, host: Runtime, incarnation: str, *, watched: bool = True) -> subprocess.Popen[bytes]:
        arguments = [str(host.address), str(self._folder), incarnation]
        process = subprocess.Popen([sys.executable, str(_PEER), *arguments])
        self.processes.append(process)
        if watched:
            loop = asyncio.get_running_loop()
            descriptor = os.pidfd_open(process.pid)

            def died() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                host.directory.process_down(incarnation, f"exited with {process.wait()}")

            loop.add_reader(descriptor, died)
        return process

    def effects(self, incarnation: str) -> list[int]:
        path = self._folder / f"effects.{incarnation}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    family = Children(tmp_path)
    yield family
    for process in family.processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def run() -> Callable[[Awaitable[None]], None]:
    """Run a test's coroutine; a minute is the most that any may take."""

    def bounded_run(main: Awaitable[None]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(main, 60)

        asyncio.run(bounded())

    return bounded_run


@pytest.fixture(scope="session")
def until() -> Callable[..., Awaitable[None]]:
    async def wait(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Let the event loop turn until the condition holds."""
        end_s = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            assert asyncio.get_running_loop().time() < end_s, "the condition did not come true"
            await asyncio.sleep(0.001)

    return wait
