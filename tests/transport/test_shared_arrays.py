"""Large arrays between runtimes that share memory: when they go there, and what happens where they cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from headrace.transport import (
    Actor,
    DeadlineExceeded,
    LoopbackNetwork,
    Oversize,
    PeerLost,
    Runtime,
    StreamNetwork,
    TransportError,
    ZmqNetwork,
    handles,
    run_virtual,
)
from headrace.transport.blocks import Locator
from headrace.transport.errors import CorruptFrame
from headrace.transport.network import MAX_SHARED_MEMORY_BYTES, Lane
from headrace.transport.shared_arrays import SharedArrays

MIB = 1 << 20
Body = Callable[[LoopbackNetwork, Runtime, Runtime], Awaitable[None]]


def with_two(body: Body, *, host_bytes: int = 4 * MIB, other_bytes: int = 4 * MIB) -> None:
    async def main() -> None:
        network = LoopbackNetwork(shared_memory_bytes=host_bytes)
        host = Runtime(network)
        await host.start()
        network.shared_memory_bytes = other_bytes
        other = Runtime(network, directory=host.address)
        await other.start()
        await body(network, host, other)
        await other.stop()
        await host.stop()

    run_virtual(main())


class Taps:
    """How many bytes each lane carried from one runtime."""

    def __init__(self, network: LoopbackNetwork, source: Runtime) -> None:
        self.bulk_bytes = self.bulk_messages = 0
        network.tap = self._tap
        self._source = source.incarnation

    def _tap(self, time_s: float, source: str, target: str, lane: Lane, frames: list[bytes]) -> None:
        if source == self._source and lane is Lane.BULK:
            self.bulk_messages += 1
            self.bulk_bytes += sum(len(memoryview(frame)) for frame in frames)


def an_array(samples, value, nbytes=100_000):
    return samples.Array(np.full(nbytes, value % 256, np.uint8))


async def there_and_back(samples, runtime, value, nbytes=100_000):
    reply = await runtime.context.ask("echo", an_array(samples, value, nbytes), timeout_s=5)
    assert (reply.values == value % 256).all()
    assert reply.values.nbytes == nbytes
    assert not reply.values.flags.writeable
    return reply


async def warm(samples, runtime):
    """Until both have said that they map the other's."""
    for value in range(3):
        await there_and_back(samples, runtime, value)


def test_arrays_after_the_first_ones_do_not_travel(samples):
    async def body(network, host, other):
        await other.add(samples.Echo(), "echo/0")
        await warm(samples, host)
        taps = Taps(network, host)
        for value in range(50):
            await there_and_back(samples, host, value)
        assert taps.bulk_bytes < 50 * 1000

    with_two(body)


@pytest.mark.parametrize(("host_bytes", "other_bytes"), [(0, 4 * MIB), (4 * MIB, 0), (50_000, 4 * MIB)])
def test_where_one_end_has_none_or_too_little_they_travel(samples, host_bytes, other_bytes):
    async def body(network, host, other):
        await other.add(samples.Echo(), "echo/0")
        taps = Taps(network, host)
        for value in range(5):
            await there_and_back(samples, host, value)
        assert taps.bulk_bytes > 5 * 100_000

    with_two(body, host_bytes=host_bytes, other_bytes=other_bytes)


def test_a_receiver_that_keeps_what_it_gets_keeps_nobody_waiting(samples):
    async def body(network, host, other):
        await other.add(samples.Echo(), "echo/0")
        kept = [await there_and_back(samples, host, value) for value in range(100)]
        assert all((reply.values == value).all() for value, reply in enumerate(kept))

    with_two(body, other_bytes=MIB)


def test_the_order_holds_between_what_is_shared_and_what_travels(samples):
    class Recorder(Actor):
        def __init__(self):
            self.values = []

        @handles(samples.Array)
        async def array(self, message: samples.Array) -> None:
            self.values.append(int(message.values[0]))

    async def body(network, host, other):
        recorder = Recorder()
        await other.add(recorder, "recorder/0")
        for value in range(100):  # a third of them is too large for the memory
            await host.context.tell("recorder", an_array(samples, value, 2 * MIB if value % 3 == 0 else 200_000))
        await samples.until(lambda: len(recorder.values) == 100)
        assert recorder.values == list(range(100))

    with_two(body, host_bytes=MIB)


@pytest.mark.parametrize("lost", ["offer", "answer", "arrays"])
def test_what_a_broken_connection_took_is_said_again(samples, lost):
    async def body(network, host, other):
        await other.add(samples.Echo(), "echo/0")
        if lost == "arrays":
            await warm(samples, host)
        if lost == "answer":
            network.lose(other.incarnation, host.incarnation, Lane.CONTROL, 1)
        else:
            network.lose(host.incarnation, other.incarnation, Lane.BULK, 1)
        for message in [an_array(samples, 9), samples.Say("something")] * 2:  # what follows on a lane shows its gap
            with contextlib.suppress(PeerLost, DeadlineExceeded):
                await host.context.ask("echo", message, timeout_s=1)
        assert network.num_lost == 1
        await warm(samples, host)
        taps = Taps(network, host)
        for value in range(10):
            await there_and_back(samples, host, value)
        assert taps.bulk_bytes < 10 * 1000

    with_two(body)


def test_arrays_for_an_actor_that_left_leave_room_for_others(samples):
    async def body(network, host, other):
        await other.add(samples.Echo(), "echo/0")
        await warm(samples, host)
        gone = replace(host._names.state.find("echo/0"), name="gone/0")
        for _ in range(100):
            host._links.tell(gone, an_array(samples, 1))
            await host.clock.sleep(0.01)
        assert other._links.counters.undelivered == 100
        taps = Taps(network, host)
        await there_and_back(samples, host, 2)
        assert taps.bulk_bytes < 1000

    with_two(body)


def test_a_receiver_with_a_lower_limit_says_so_and_goes_on(samples, tmp_path):
    """messaging fault 17: nothing is cut where it goes through shared memory."""

    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)))
        await host.start()
        other = Runtime(ZmqNetwork(ipc_folder=str(tmp_path), max_message_bytes=MIB), directory=host.address)
        await other.start()
        await other.add(samples.Echo(), "echo/0")
        await warm(samples, host)
        for _ in range(3):
            with pytest.raises(Oversize, match=f"receiver.s limit of {MIB};"):
                await host.context.ask("echo", an_array(samples, 1, 2 * MIB), timeout_s=10)
        assert other._links.counters.oversize == 3
        await there_and_back(samples, host, 2)
        assert host._links._links[other.incarnation].credit(host._names.state.find("echo/0")).outstanding < 8
        await other.stop()
        await host.stop()

    asyncio.run(main())


def test_an_offer_of_what_is_not_the_peers_is_answered_with_no() -> None:
    """Else its sender would wait for an answer and keep a descriptor open: containers count their processes anew."""
    answers: list[tuple[int, bool]] = []
    shared = SharedArrays("a", "b", MIB, offer=lambda *_: None, answer=lambda *answer: answers.append(answer))
    with open(__file__) as file, pytest.raises(CorruptFrame):
        shared.offered(7, Locator(os.getpid(), file.fileno(), MIB))
    shared.offered(8, Locator(os.getpid(), 1 << 20, MIB))
    assert answers == [(7, False), (8, False)]


def test_who_tells_many_large_messages_leaves_others_their_turn(samples):
    async def body(network, host, other):
        await other.add(samples.Echo(), "echo/0")
        turns = 0

        async def somebody_else():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(somebody_else())
        for _ in range(32):
            await host.context.tell("echo", an_array(samples, 1, 64 * 1024))
        assert turns >= 8
        task.cancel()

    with_two(body)


def test_nothing_is_left_of_runtimes_that_stopped(samples):
    before = len(os.listdir("/proc/self/fd"))

    async def body(network, host, other):
        await other.add(samples.Echo(), "echo/0")
        await warm(samples, host)

    with_two(body)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("make", [ZmqNetwork, StreamNetwork, LoopbackNetwork])
@pytest.mark.parametrize("num_bytes", [-1, MAX_SHARED_MEMORY_BYTES + 1])
def test_a_size_that_cannot_be(make, num_bytes):
    with pytest.raises(ValueError, match="shared_memory_bytes must be from 0"):
        make(shared_memory_bytes=num_bytes)


class TestADefectOfSharedMemory:
    """Whatever it raises costs the message that met it: no credit, and not the actor that replied."""

    def test_of_the_sender(self, samples, monkeypatch):
        async def body(network, host, other):
            await host.add(samples.Echo(), "echo/0")
            await warm(samples, other)
            with monkeypatch.context() as broken:
                broken.setattr(SharedArrays, "place", lambda self, frames: 1 / 0)
                for _ in range(2_000):
                    with pytest.raises(ZeroDivisionError):
                        await other.context.tell("echo", an_array(samples, 1))
            await there_and_back(samples, other, 7)

        with_two(body)

    def test_of_the_replier(self, samples, monkeypatch):
        async def body(network, host, other):
            await host.add(samples.Echo(), "echo/0")
            await warm(samples, other)
            place = SharedArrays.place
            with monkeypatch.context() as broken:
                broken.setattr(
                    SharedArrays,
                    "place",
                    lambda self, frames: 1 / 0 if self._own == host.incarnation else place(self, frames),
                )
                with pytest.raises(TransportError, match="no reply could be sent: ZeroDivisionError"):
                    await there_and_back(samples, other, 3)
            assert not host.failed.done()
            await there_and_back(samples, other, 7)

        with_two(body)
