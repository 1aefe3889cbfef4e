"""Nothing is lost in silence between two runtimes that live: more than any high-water mark, the first message, both
ways at once, among cancelled asks, and while the sender frees and reuses what it sent.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from headrace.transport import (
    Actor,
    DeadlineExceeded,
    MailboxBound,
    PeerLost,
    Runtime,
    UnknownActor,
    ZmqNetwork,
    handles,
    message,
)
from headrace.transport.network import Lane


@message("faults.weights")
@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    values: torch.Tensor


class Scale(Actor):
    def __init__(self) -> None:
        self.sums: list[float] = []

    @handles(Weights)
    async def weights(self, message: Weights) -> None:
        self.sums.append(float(message.values.double().sum()))


def test_more_than_any_high_water_mark_arrives(network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any) -> None:
    """messaging faults 1, 2: ZeroMQ's default mark is 1000; a full one, and an unknown receiver, drop in silence."""

    async def main() -> None:
        async with pair(network) as (host, other):
            worker = peer.Worker()
            worker.mailbox = MailboxBound(capacity=20_000)
            await other.add(worker, "worker/0")
            await host.context.ask("worker/0", peer.Work(-1), timeout_s=10)
            for number in range(10_000):  # without a turn of the event loop between: all wait at once
                assert host.context.tell_soon("worker/0", peer.Work(number))
            await host.context.ask("worker/0", peer.Work(10_000), timeout_s=30)
            assert worker.numbers == [-1, *range(10_001)]
            with pytest.raises(UnknownActor, match="no actor 'nobody/0'"):
                await host.context.tell("nobody/0", peer.Work(0), timeout_s=0.02)
            assert not host.context.tell_soon("nobody/0", peer.Work(0))
            address = str(other.address)
            host.directory.process_down(other.incarnation, "exited with 1")
            with pytest.raises((UnknownActor, PeerLost)):
                await host.context.tell("worker/0", peer.Work(0), timeout_s=0.02)
            assert address

    run(main())


def test_the_first_message_arrives(network: ZmqNetwork, peer: ModuleType, run: Any) -> None:
    """messaging fault 3, cases I122: a publisher's first messages are lost until its subscribers have joined."""

    async def main() -> None:
        host = Runtime(network)
        await host.start()
        others: list[Runtime] = []
        try:
            for index in range(12):
                other = Runtime(network, directory=host.address)
                others.append(other)
                await other.start()
                worker = peer.Worker()
                await other.add(worker, f"worker/{index}")
                for number in range(5):
                    await host.context.tell(f"worker/{index}", peer.Work(number))
                await host.context.ask(f"worker/{index}", peer.Work(5), timeout_s=10)
                assert worker.numbers == list(range(6))
        finally:
            for other in others:
                await other.stop()
            await host.stop()

    run(main())


def test_sends_among_receives_never_stall(network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any) -> None:
    """messaging fault 5: a send consumes the edge of its own socket's descriptor, and what has arrived is not read."""

    async def main() -> None:
        async with pair(network) as (host, other):
            here, there = peer.Worker(), peer.Worker()
            await host.add(here, "here/0")
            await other.add(there, "there/0")

            async def talk(runtime: Runtime, to: str, offset: int) -> None:
                for number in range(offset, 10_000, 10):
                    assert (await runtime.context.ask(to, peer.Work(number), timeout_s=20)).number == number

            talks = [talk(host, "there/0", offset) for offset in range(10)]
            talks += [talk(other, "here/0", offset) for offset in range(10)]
            await asyncio.gather(*talks)
            assert sorted(here.numbers) == sorted(there.numbers) == list(range(10_000))

    run(main())


def test_cancelled_asks_lose_nothing_else(network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any) -> None:
    """messaging fault 6, cases I119: zeromq/pyzmq#1925. 3,000 numbered messages among 3,000 cancelled asks arrive in
    order; 10,000 cancelled asks leave nothing behind."""

    async def main() -> None:
        async with pair(network) as (host, other):
            worker = peer.Worker()
            await other.add(worker, "worker/0")
            await host.context.ask("worker/0", peer.Work(-1), timeout_s=10)
            for number in range(3_000):
                await host.context.tell("worker/0", peer.Work(number))
                ask = asyncio.ensure_future(host.context.ask("worker/0", peer.Work(-2), timeout_s=60))
                await asyncio.sleep(0)
                if number % 3:
                    await asyncio.sleep(0)
                ask.cancel()
            await host.context.ask("worker/0", peer.Work(3_000), timeout_s=30)
            assert [number for number in worker.numbers if number >= 0] == list(range(3_001))
            for _ in range(100):
                asks = [
                    asyncio.ensure_future(host.context.ask("worker/0", peer.Nap(60), timeout_s=60)) for _ in "x" * 100
                ]
                await asyncio.sleep(0)
                for ask in asks:
                    ask.cancel()
                await asyncio.gather(*asks, return_exceptions=True)
            await host.context.ask("worker/0", peer.Work(0), timeout_s=30)
            assert len(host._calls) == 0
            assert worker.napping == 0
            assert not other._links._links[host.incarnation].serving

    run(main())


def test_what_was_sent_is_what_arrives(network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any) -> None:
    """messaging fault 7: a buffer that is reused after a send without a copy arrives corrupted."""

    async def main() -> None:
        async with pair(network) as (host, other):
            worker = peer.Worker()
            await other.add(worker, "worker/0")
            size = 500_000
            for number in range(20):
                values = np.full(size, float(number))
                await host.context.tell("worker/0", peer.Bulk(number, values))
                with pytest.raises(ValueError, match="read-only"):
                    values[:] = -1.0
                del values  # its memory is free for the next one
            await host.context.ask("worker/0", peer.Bulk(20, np.full(size, 20.0)), timeout_s=20)
            assert worker.sums == [float(number * size) for number in range(21)]

    run(main())


@pytest.mark.parametrize("part", [slice(None), slice(0, 400_000), slice(None, None, 2)])
def test_a_view_may_be_sent_and_its_array_reused(
    part: slice, network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any
) -> None:
    """messaging fault 7: a view made read-only still changes with the array that it looks into."""

    async def main() -> None:
        async with pair(network) as (host, other):
            worker = peer.Worker()
            await other.add(worker, "worker/0")
            ring = np.empty(500_000)
            for number in range(20):
                ring[:] = number
                await host.context.tell("worker/0", peer.Bulk(number, ring[part]))
            ring[:] = -1.0
            await host.context.ask("worker/0", peer.Bulk(20, np.zeros(100_000)), timeout_s=20)
            size = ring[part].size
            assert worker.sums[:20] == [float(number * size) for number in range(20)]

    run(main())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_may_be_sent_and_reused(dtype: torch.dtype, network: ZmqNetwork, pair: Any, run: Any) -> None:
    """messaging fault 7: a tensor cannot be made read-only; it is copied."""

    async def main() -> None:
        async with pair(network) as (host, other):
            scale = Scale()
            await other.add(scale, "scale/0")
            tensor = torch.empty(500_000, dtype=dtype)
            for number in range(20):
                tensor.fill_(number)
                await host.context.tell("scale/0", Weights(tensor))
            tensor.fill_(-1)
            await host.context.ask("scale/0", Weights(torch.zeros(100_000)), timeout_s=20)
            assert scale.sums[:20] == [float(number * 500_000) for number in range(20)]

    run(main())


def test_a_chatty_peer_leaves_the_others_their_turn(network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any) -> None:
    """messaging fault 31: 20,000 messages wait for one actor when another peer asks its neighbour."""

    async def main() -> None:
        async with pair(network) as (host, other):
            chatty = Runtime(network, directory=host.address)
            await chatty.start()
            try:
                busy, quiet = peer.Worker(), peer.Worker()
                busy.mailbox = MailboxBound(capacity=30_000)
                await other.add(busy, "busy/0")
                await other.add(quiet, "quiet/0")
                await chatty.context.ask("busy/0", peer.Work(-1), timeout_s=10)
                await host.context.ask("quiet/0", peer.Work(-1), timeout_s=10)
                for number in range(20_000):
                    assert chatty.context.tell_soon("busy/0", peer.Work(number))
                await host.context.ask("quiet/0", peer.Work(0), timeout_s=10)
                assert len(busy.numbers) < 10_000
                await chatty.context.ask("busy/0", peer.Work(20_000), timeout_s=30)
                assert busy.numbers == [-1, *range(20_001)]
            finally:
                await chatty.stop()

    run(main())


def test_a_socket_leaves_the_rest_of_the_loop_its_turn(
    network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any
) -> None:
    """messaging fault 31: what waits in one socket is read in parts, however much it is."""

    async def main() -> None:
        async with pair(network) as (host, other):
            received: list[int] = []
            turns: list[int] = []
            receive = other._links.receive
            sockets: Any = other._links._port._lanes[Lane.CONTROL]  # type: ignore[union-attr]
            sockets._receive = lambda lane, frames: received.append(1) or receive(lane, frames)
            port: Any = host._links._port
            for _ in range(5_000):  # batches of nobody's, each counted and dropped
                port.send(other._links._port.address, Lane.CONTROL, [b"x"])  # type: ignore[union-attr]
            while len(received) < 5_000:
                await asyncio.sleep(0)
                turns.append(len(received))
            assert max(after - before for before, after in pairwise([0, *turns])) <= 1_000

    run(main())


def test_control_answers_while_bulk_flows(network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any) -> None:
    """messaging fault 19: on one connection a small message waits behind every large one that is queued."""

    async def main() -> None:
        async with pair(network) as (host, other):
            bulk, control = peer.Worker(), peer.Worker()
            bulk.mailbox = MailboxBound(capacity=256, window_bytes=1 << 30)
            await other.add(bulk, "bulk/0")
            await other.add(control, "control/0")
            await host.context.ask("control/0", peer.Work(0), timeout_s=10)
            values = np.zeros(8 << 20, np.uint8)
            flood = [
                asyncio.ensure_future(host.context.ask("bulk/0", peer.Bulk(number, values), timeout_s=50))
                for number in range(40)
            ]
            await asyncio.sleep(0)
            for number in range(1, 6):
                await host.context.ask("control/0", peer.Work(number), timeout_s=10)
            assert not all(ask.done() for ask in flood), "control overtakes what was sent before it"
            await asyncio.gather(*flood)

    run(main())


def test_deadlines_are_monotonic(monkeypatch: pytest.MonkeyPatch, pair: Any, peer: ModuleType, run: Any) -> None:
    """messaging fault 30: the wall clock jumps by a day, and no deadline moves."""
    real = time.time
    offset_s = 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset_s)

    async def main() -> None:
        nonlocal offset_s
        async with pair(ZmqNetwork()) as (host, other):
            await other.add(peer.Worker(), "worker/0")
            for jump_s in (86_400.0, -86_400.0):
                began_s = time.monotonic()
                ask = asyncio.ensure_future(host.context.ask("worker/0", peer.Nap(60), timeout_s=0.2))
                await asyncio.sleep(0)
                offset_s += jump_s
                await host.context.ask("worker/0", peer.Nap(0), timeout_s=10)
                with pytest.raises(DeadlineExceeded):
                    await ask
                assert 0.19 < time.monotonic() - began_s < 10

    run(main())
