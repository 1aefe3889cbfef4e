"""Endpoints, descriptors and connections: nothing is guessed or reused, a stranger in a dead peer's place gets no mail,
and a limit of the system is an error by name.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from headrace.transport import DeadlineExceeded, PeerLost, Runtime, ZmqNetwork
from headrace.transport.network import Frame, Lane


def test_no_endpoint_is_guessed_or_used_twice(network: ZmqNetwork, run: Any) -> None:
    """messaging faults 13, 14: a second bind on an ipc path succeeds and steals; a port that was free a moment ago is
    not. Paths are random, ports are the system's choice, and both are announced as bound."""

    async def main() -> None:
        seen: set[str] = set()
        for _ in range(3):
            ports = await asyncio.gather(
                *(network.open(f"one{index}", lambda lane, frames: None) for index in range(12))
            )
            endpoints = [endpoint for port in ports for endpoint in (port.address.control, port.address.bulk)]
            assert len(set(endpoints)) == len(endpoints)
            assert not any(endpoint.endswith((":0", ":*")) for endpoint in endpoints)
            if endpoints[0].startswith("ipc"):
                assert not seen & set(endpoints)
            seen |= set(endpoints)
            await asyncio.gather(*(port.close(0.0) for port in ports))

    run(main())


def test_a_stale_socket_file_harms_nothing(tmp_path: Path, children: Any, peer: ModuleType, run: Any) -> None:
    """messaging fault 13: what a killed process left behind is neither reused nor in the way."""

    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)))
        await host.start()
        try:
            for incarnation in ("first", "second"):
                child = children.start(host, incarnation)
                await host.context.ask("worker/0", peer.Work(0), timeout_s=60)
                child.kill()
                child.wait()
                with pytest.raises((PeerLost, DeadlineExceeded)):
                    await host.context.ask("worker/0", peer.Work(1), timeout_s=1)
            stale = [path for path in tmp_path.rglob("*") if path.is_socket()]  # noqa: ASYNC240
            assert len(stale) == 2 * 3, "two a process, of two that were killed and of the host"
            assert children.effects("first") == children.effects("second") == [0]
        finally:
            await host.stop()

    run(main())


class _FixedEndpoint(ZmqNetwork):
    """Binds where it is told: what the system does by chance when it gives a dead process's port to the next."""

    def __init__(self, *, endpoints: dict[Lane, str], **options: Any) -> None:
        super().__init__(**options)
        self._fixed = endpoints

    def _endpoint(self, lane: Lane, folder: Path | None) -> str:
        return self._fixed[lane]


@pytest.mark.parametrize("bind", ["ipc", "tcp://127.0.0.1"])
def test_a_stranger_at_a_dead_peers_endpoint_gets_no_mail(
    bind: str, tmp_path: Path, peer: ModuleType, run: Any, until: Any
) -> None:
    """messaging faults 8, 27: ZeroMQ reconnects to whoever binds there and delivers what was queued. The incarnation in
    each batch tells them apart; what waited ends by name; the newcomer is reached under its own incarnation."""

    async def main() -> None:
        options: dict[str, Any] = {"bind": bind, "ipc_folder": str(tmp_path), "heartbeat_s": 0.1}
        host = Runtime(ZmqNetwork(**options), silence_s=2.0)
        await host.start()
        first = Runtime(ZmqNetwork(**options), directory=host.address, incarnation="first")
        await first.start()
        await first.add(peer.Worker(), "worker/0")
        await host.context.ask("worker/0", peer.Work(0), timeout_s=10)
        pending = asyncio.ensure_future(host.context.ask("worker/0", peer.Nap(60), timeout_s=60))
        await asyncio.sleep(0)
        endpoints = {Lane.CONTROL: first.address.control, Lane.BULK: first.address.bulk}
        first._closing.clear()
        port = first._links._port
        assert port is not None
        first._links.disown()  # it goes without a word, as if it had been killed
        for cell in first._cells.values():
            await cell.close("killed")
        await port.close(0.0)
        asks = [asyncio.ensure_future(host.context.ask("worker/0", peer.Work(n), timeout_s=60)) for n in range(1, 50)]
        await asyncio.sleep(0)
        for folder in {
            Path(endpoint.removeprefix("ipc://")).parent for endpoint in endpoints.values() if bind == "ipc"
        }:
            folder.mkdir(exist_ok=True)
        stranger = Runtime(_FixedEndpoint(endpoints=endpoints, **options), directory=host.address, incarnation="second")
        await stranger.start()
        worker = peer.Worker()
        try:
            await until(lambda: stranger._links.counters.other_incarnation > 0)
            for ask in (pending, *asks):
                with pytest.raises(PeerLost, match="incarnation first"):
                    await ask
            await stranger.add(worker, "worker/0")
            for number in range(100, 110):
                await host.context.ask("worker/0", peer.Work(number), timeout_s=10)
            assert worker.numbers == list(range(100, 110))
        finally:
            await stranger.stop()
            await first.stop()
            await host.stop()

    run(main())


def test_hundreds_of_peers_and_what_each_costs(tmp_path: Path, run: Any, until: Any) -> None:
    """messaging fault 32: descriptors a peer, counted; and all are given back."""

    async def main() -> None:
        network = ZmqNetwork(ipc_folder=str(tmp_path))
        host = Runtime(network)
        await host.start()
        ports = await asyncio.gather(*(network.open(f"peer{index}", lambda lane, frames: None) for index in range(100)))
        before = len(os.listdir("/proc/self/fd"))
        sent: list[Frame] = [b"x"]
        for port in ports:
            for lane in Lane:
                host._links._port.send(port.address, lane, sent)  # type: ignore[union-attr]
        await asyncio.sleep(1.0)
        now = len(os.listdir("/proc/self/fd"))
        # Each lane: a mailbox of the PUSH socket, its connection, and here the accepting end too.
        assert (now - before) / len(ports) <= 8
        for port in ports:
            host._links._port.forget(port.address)  # type: ignore[union-attr]
        await until(lambda: len(os.listdir("/proc/self/fd")) - before <= 2 * len(ports))  # the accepting ends
        await asyncio.gather(*(port.close(0.0) for port in ports))
        await host.stop()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    try:
        opened = len(os.listdir("/proc/self/fd"))
        run(main())
        assert len(os.listdir("/proc/self/fd")) <= opened + 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_FEW_DESCRIPTORS = """
import asyncio, importlib.util, os, resource, sys
spec = importlib.util.spec_from_file_location("peer", sys.argv[1])
peer = importlib.util.module_from_spec(spec); sys.modules["peer"] = peer; spec.loader.exec_module(peer)
from headrace.transport import Runtime, TransportError, ZmqNetwork

async def main():
    runtime = Runtime(ZmqNetwork(ipc_folder=sys.argv[3]), directory=sys.argv[2], incarnation="poor")
    await runtime.start()
    await runtime.context.ask("worker/0", peer.Work(0), timeout_s=10)
    opened = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 6, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for index in range(1, 12):
        try:  # where a socket is left and no connection, the deadline is what ends it
            await runtime.context.ask(f"worker/{index}", peer.Work(index), timeout_s=1)
        except TransportError as error:
            print("REFUSED", type(error).__name__, error, flush=True)
    await runtime.context.ask("worker/0", peer.Work(12), timeout_s=10)
    await runtime.stop()
    print("lived", flush=True)

asyncio.run(main())
"""


def test_no_descriptors_left_is_an_error_by_name(tmp_path: Path, peer: ModuleType, run: Any) -> None:
    """messaging fault 32: neither a hang nor a crash; peers that are connected stay so."""

    async def main() -> None:
        network = ZmqNetwork(ipc_folder=str(tmp_path))
        host = Runtime(network)
        await host.start()
        others = []
        try:
            for index in range(12):
                other = Runtime(network, directory=host.address)
                others.append(other)
                await other.start()
                await other.add(peer.Worker(), f"worker/{index}")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _FEW_DESCRIPTORS, str(peer.__file__), str(host.address), str(tmp_path),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            output, errors = await asyncio.wait_for(process.communicate(), 50)
            text = output.decode() + errors.decode()
            assert process.returncode == 0, text
            assert "lived" in text
            assert "Too many open files" in output.decode(), text
        finally:
            for other in others:
                await other.stop()
            await host.stop()

    run(main())


def test_a_receiver_with_a_lower_limit_cuts_the_sender_off_by_name(peer: ModuleType, tmp_path: Path, run: Any) -> None:
    """messaging fault 17, cases I115: the sender sees no error, its receiver drops the connection; the ask ends."""

    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path), shared_memory_bytes=0))
        await host.start()
        other = Runtime(ZmqNetwork(ipc_folder=str(tmp_path), max_message_bytes=1 << 20), directory=host.address)
        await other.start()
        worker = peer.Worker()
        try:
            await other.add(worker, "worker/0")
            await host.context.ask("worker/0", peer.Bulk(0, np.zeros(50_000)), timeout_s=10)
            with pytest.raises((PeerLost, DeadlineExceeded)):
                await host.context.ask("worker/0", peer.Bulk(1, np.zeros(1_000_000)), timeout_s=2)
            for number in range(2, 30):  # the first after the cut may be what shows the gap
                try:
                    await host.context.ask("worker/0", peer.Bulk(number, np.zeros(50_000)), timeout_s=2)
                    break
                except (PeerLost, DeadlineExceeded):
                    continue
            assert 1 not in worker.numbers
            assert worker.numbers[-1] >= 2
            await host.context.ask("worker/0", peer.Work(100), timeout_s=10)
        finally:
            await other.stop()
            await host.stop()

    run(main())


def test_closing_a_network_with_a_reader_in_its_loop(network: ZmqNetwork, run: Any) -> None:
    """cases I122: zeromq/pyzmq#1114, #1305: a socket that closes while its descriptor is watched."""

    async def main() -> None:
        heard: list[Any] = []
        one = await network.open("one", lambda lane, frames: heard.append(frames))
        two = await network.open("two", lambda lane, frames: None)
        for _ in range(1_000):
            two.send(one.address, Lane.CONTROL, [b"message"])
        await asyncio.sleep(0)
        await one.close(0.0)
        await one.close(0.0)
        num = len(heard)
        two.send(one.address, Lane.CONTROL, [b"to nobody"])
        await asyncio.sleep(0.05)
        assert len(heard) == num
        await two.close(0.0)
        two.send(one.address, Lane.CONTROL, [b"from nobody"])

    run(main())
