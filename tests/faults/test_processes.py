"""Processes that die, freeze, fork or leave: whoever waits for them learns it by name, nothing happens twice, and the
next one under their name gets only its own mail.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from headrace.transport import (
    DeadlineExceeded,
    PeerLost,
    Runtime,
    RuntimeStopped,
    TransportError,
    UnknownActor,
    ZmqNetwork,
)


async def _host(folder: Path, **options: Any) -> Runtime:
    host = Runtime(ZmqNetwork(ipc_folder=str(folder), heartbeat_s=0.2), **options)
    await host.start()
    return host


def test_a_receiver_that_dies_with_a_full_queue(
    tmp_path: Path, children: Any, peer: ModuleType, run: Any, until: Any
) -> None:
    """messaging faults 4, 8, 20: 1,500 sends went well, 89 were handled, nobody was told. Here every ask ends in its
    reply or in PeerLost with incarnation and exit code, no effect happens twice, none of the acknowledged is missing,
    and nothing of it reaches the one restarted under that name."""

    async def main() -> None:
        host = await _host(tmp_path)
        try:
            first = children.start(host, "first")
            await host.context.ask("worker/0", peer.Work(-1), timeout_s=60)
            asks = [
                asyncio.ensure_future(host.context.ask("worker/0", peer.Work(number, 0.001), timeout_s=60))
                for number in range(800)
            ]
            tells = [
                asyncio.ensure_future(host.context.tell("worker/0", peer.Work(number, 0.001), timeout_s=60))
                for number in range(1_000, 1_800)
            ]
            await until(lambda: sum(ask.done() for ask in asks) >= 50)
            first.send_signal(signal.SIGKILL)
            killed_s = time.perf_counter()
            replies = await asyncio.gather(*asks, return_exceptions=True)
            sent = await asyncio.gather(*tells, return_exceptions=True)
            assert time.perf_counter() - killed_s < 5.0
            lost = [reply for reply in replies if not isinstance(reply, peer.Work)]
            assert 0 < len(lost) < 800
            for error in lost:
                assert type(error) is PeerLost
                assert error.incarnation == "first"
                assert error.reason == "exited with -9"
            assert {type(one) for one in sent} <= {type(None), PeerLost}
            effects = children.effects("first")
            assert len(effects) == len(set(effects)), "at most once"
            assert {reply.number for reply in replies if isinstance(reply, peer.Work)} <= set(effects)

            children.start(host, "second")
            for number in (5_000, 5_001):
                assert (await host.context.ask("worker/0", peer.Work(number), timeout_s=60)).number == number
            assert children.effects("second") == [5_000, 5_001]
        finally:
            await host.stop()

    run(main())


def test_an_asker_that_dies_is_worked_for_no_longer(
    tmp_path: Path, children: Any, peer: ModuleType, run: Any, until: Any
) -> None:
    """messaging fault 20: the caller's death with its work in flight here."""

    async def main() -> None:
        host = await _host(tmp_path)
        worker = peer.Worker()
        try:
            await host.add(worker, "server/0")
            child = children.start(host, "asker")
            calls = [
                asyncio.ensure_future(host.context.ask("worker/0", peer.Call("server/0", 600.0), timeout_s=60))
                for _ in range(10)
            ]
            await until(lambda: worker.napping == 10, 60)
            child.kill()
            await until(lambda: worker.cancelled == 10)
            for call in calls:
                with pytest.raises(PeerLost, match=r"incarnation asker.*exited with -9"):
                    await call
        finally:
            await host.stop()

    run(main())


def test_a_frozen_process_has_a_definite_end(
    tmp_path: Path, children: Any, peer: ModuleType, run: Any, until: Any
) -> None:
    """messaging faults 10, 27: SIGSTOP is a connection that is half open: no exit, no reset, only silence. What waits
    ends by name; when it goes on, the frozen one learns that it counts as dead and ends."""

    async def main() -> None:
        host = await _host(tmp_path, silence_s=3.0)
        try:
            child = children.start(host, "frozen", watched=False)
            await host.context.ask("worker/0", peer.Work(0), timeout_s=60)
            ask = asyncio.ensure_future(host.context.ask("worker/0", peer.Nap(60), timeout_s=60))
            child.send_signal(signal.SIGSTOP)
            with pytest.raises(PeerLost, match=r"incarnation frozen.*no heartbeat"):
                await ask
            with pytest.raises((PeerLost, UnknownActor)):
                await host.context.tell("worker/0", peer.Work(1), timeout_s=0.05)
            child.send_signal(signal.SIGCONT)
            await until(lambda: child.poll() is not None)
            assert child.returncode == 1, "it ended by the error, not by a signal"
            assert children.effects("frozen") == [0]
        finally:
            await host.stop()

    run(main())


@pytest.mark.parametrize("large", [False, True])
def test_nobody_works_for_an_asker_that_gave_up(
    large: bool, tmp_path: Path, children: Any, peer: ModuleType, run: Any, until: Any
) -> None:
    """messaging fault 30: the receiver's event loop stood still past the deadline; then the ask and the word that
    nobody waits for it are there together, on one lane or on two."""

    async def main() -> None:
        host = await _host(tmp_path)
        try:
            children.start(host, "child")
            await host.context.ask("worker/0", peer.Bulk(0, np.zeros(100_000)), timeout_s=60)
            for number in range(1, 6):
                await host.context.tell("worker/0", peer.Block(100 + number, 0.3))
                await until(lambda number=number: 100 + number in children.effects("child"))
                message = peer.Bulk(-number, np.ones(100_000)) if large else peer.Work(-number)
                with pytest.raises(DeadlineExceeded, match=r"within 0.05 s"):
                    await host.context.ask("worker/0", message, timeout_s=0.05)
                await host.context.ask("worker/0", peer.Bulk(number, np.zeros(100_000)), timeout_s=10)
            assert [number for number in children.effects("child") if number < 100] == [0, 1, 2, 3, 4, 5]
        finally:
            await host.stop()

    run(main())


_LEAVES = """
import asyncio, importlib.util, sys, time
spec = importlib.util.spec_from_file_location("peer", sys.argv[1])
peer = importlib.util.module_from_spec(spec); sys.modules["peer"] = peer; spec.loader.exec_module(peer)
from headrace.transport import Runtime, ZmqNetwork

async def main():
    runtime = Runtime(ZmqNetwork(ipc_folder=sys.argv[3]), directory=sys.argv[2], incarnation="leaver")
    await runtime.start()
    for index in range(3):
        await runtime.add(peer.Worker(), f"leaver/{index}")
    await runtime.context.ask("worker/0", peer.Work(0), timeout_s=60)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(200):
        runtime.context.tell_soon("worker/0", peer.Work(number))
    began_s = time.perf_counter()
    await runtime.stop()
    print(time.perf_counter() - began_s, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("silent", ["peer", "directory"])
def test_an_exit_with_unsent_messages_does_not_hang(
    silent: str, tmp_path: Path, children: Any, peer: ModuleType, run: Any
) -> None:
    """messaging fault 9, cases I121: zeromq/pyzmq#102. What was not sent to a peer that takes nothing, or to a
    directory that is gone, holds nobody up."""

    async def main() -> None:
        host = await _host(tmp_path)
        leaver: subprocess.Popen[str] | None = None
        try:
            frozen = children.start(host, "frozen", watched=False)
            await host.context.ask("worker/0", peer.Work(-1), timeout_s=60)
            leaver = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-c", _LEAVES, str(peer.__file__), str(host.address), str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            loop = asyncio.get_running_loop()
            assert leaver.stdin is not None
            assert leaver.stdout is not None
            assert await loop.run_in_executor(None, leaver.stdout.readline) == "ready\n"
            frozen.send_signal(signal.SIGSTOP)
            leaver.stdin.write("\n")
            leaver.stdin.flush()
            if silent == "directory":  # this very process: it does not turn its event loop any more
                took_s = float(leaver.stdout.readline())
                leaver.wait(10)
            else:
                took_s = float(await loop.run_in_executor(None, leaver.stdout.readline))
                await loop.run_in_executor(None, leaver.wait, 10)
            assert took_s < (2.0 if silent == "peer" else 5.0)
            assert leaver.returncode == 0
        finally:
            if leaver is not None:
                leaver.kill()
                leaver.wait()
            await host.stop()

    run(main())


_FORKS = """
import asyncio, importlib.util, os, sys
spec = importlib.util.spec_from_file_location("peer", sys.argv[1])
peer = importlib.util.module_from_spec(spec); sys.modules["peer"] = peer; spec.loader.exec_module(peer)
from headrace.transport import Runtime, RuntimeStopped, ZmqNetwork

async def forbidden(context):
    for attempt in (context.ask("worker/0", peer.Work(99), timeout_s=5), context.tell("worker/0", peer.Work(99))):
        try:
            await attempt
        except RuntimeStopped as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("a forked child must not use its parent's runtime")

async def main():
    network = ZmqNetwork(ipc_folder=sys.argv[2])
    host, other = Runtime(network), None
    await host.start()
    other = Runtime(network, directory=host.address)
    await other.start()
    worker = peer.Worker()
    await other.add(worker, "worker/0")
    await host.context.ask("worker/0", peer.Work(0), timeout_s=5)
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                asyncio.events._set_running_loop(None)
                asyncio.run(forbidden(host.context))
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        _, status = await asyncio.get_running_loop().run_in_executor(None, os.waitpid, child, 0)
        assert status == 0, status
    for number in range(1, 50):
        await host.context.ask("worker/0", peer.Work(number), timeout_s=5)
    assert worker.numbers == list(range(50)), worker.numbers
    await other.stop(); await host.stop()
    print("unharmed", flush=True)

asyncio.run(main())
"""


def test_a_forked_child_gets_an_error_and_its_parent_no_harm(tmp_path: Path, peer: ModuleType) -> None:
    """messaging fault 12: libzmq's threads do not survive a fork: the child's messages never leave, without a word."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKS, str(peer.__file__), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1:] == ["unharmed"], done.stdout + done.stderr
    assert done.returncode == 0
    assert not list(tmp_path.iterdir())


_ENDS_HERE = "forker/0: a forked child came back from its handler: it ends here; start processes with spawn"
_FORKS_IN_A_HANDLER = """
import asyncio, os, sys
from dataclasses import dataclass
from headrace.transport import Actor, Runtime, ZmqNetwork, handles, message

@message("forks.go")
@dataclass(frozen=True, slots=True)
class Go:
    pass

class Forker(Actor):
    @handles(Go)
    async def go(self, message: Go) -> Go:
        self.child = os.fork() or os.getpid()
        return message

async def main():
    network = ZmqNetwork(ipc_folder=sys.argv[1])
    host = Runtime(network)
    await host.start()
    other = Runtime(network, directory=host.address)
    await other.start()
    forker = Forker()
    await other.add(forker, "forker/0")
    for _ in range(2):
        await host.context.ask("forker/0", Go(), timeout_s=20)
        await asyncio.get_running_loop().run_in_executor(None, os.waitpid, forker.child, 0)
    await other.stop(); await host.stop()
    print("unharmed", flush=True)

asyncio.run(main())
"""


def test_a_child_that_a_handler_forked_ends_where_it_comes_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS_IN_A_HANDLER, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["unharmed"], done.stdout + done.stderr
    assert done.stderr.splitlines() == [_ENDS_HERE] * 2
    assert not list(tmp_path.iterdir())


def test_a_process_that_was_never_there(tmp_path: Path, run: Any) -> None:
    """messaging fault 27: to join a directory that is gone ends by name."""

    async def main() -> None:
        host = await _host(tmp_path)
        address = str(host.address)
        await host.stop()
        late = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)), directory=address)
        starting = asyncio.ensure_future(late.start())
        await asyncio.sleep(0.05)
        await late.stop()
        with pytest.raises((TransportError, RuntimeStopped)):
            await starting

    run(main())
