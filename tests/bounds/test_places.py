"""Who waits for a place or for credit: in turn, without turning the loop, and never past the bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from headrace.transport import (
    Actor,
    DeadlineExceeded,
    LoopbackNetwork,
    MailboxBound,
    PeerLost,
    Runtime,
    handles,
    message,
    run_virtual,
)
from headrace.transport.calls import STREAM_WINDOW
from headrace.transport.network import Lane
from headrace.transport.outbound import Outbound


@message("bounds.number")
@dataclass(frozen=True, slots=True)
class Number:
    value: int


@message("bounds.count")
@dataclass(frozen=True, slots=True)
class Count:
    upto: int


@message("bounds.reply")
@dataclass(frozen=True, slots=True, eq=False)
class Large:
    values: np.ndarray


class Slow(Actor):
    mailbox = MailboxBound(capacity=4)

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.heard: list[int] = []
        self.produced = 0

    @handles(Number)
    async def number(self, message: Number) -> Large:
        self.heard.append(message.value)
        await self.context.clock.sleep(self.takes_s)
        return Large(np.zeros(1 << 16))

    @handles(Count, stream=True)
    async def count(self, message: Count) -> AsyncIterator[Number]:
        for value in range(message.upto):
            self.produced += 1
            yield Number(value)


Main = Callable[[LoopbackNetwork, Runtime, Runtime], Coroutine[Any, Any, None]]


def run(main: Main) -> None:
    async def with_runtimes() -> None:
        network = LoopbackNetwork()
        host = Runtime(network, incarnation="host")
        await host.start()
        other = Runtime(network, directory=host.address, incarnation="other")
        await other.start()
        await main(network, host, other)
        await other.stop()
        await host.stop()

    run_virtual(with_runtimes())


def test_many_senders_of_one_process_wait_without_turning_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second in the queue once looked again and again, at every turn of the loop, until its turn came."""
    looks = 0
    wait = Outbound._or_end

    async def counted(self: Outbound, *args: Any) -> None:
        nonlocal looks
        looks += 1
        await wait(self, *args)

    monkeypatch.setattr(Outbound, "_or_end", counted)

    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        slow = Slow(1.0)
        await host.add(slow, "slow/0")
        await asyncio.gather(*(host.context.tell("slow/0", Number(i), timeout_s=1e3) for i in range(40)))
        assert slow.heard == sorted(slow.heard), "first come, first served"
        assert looks < 100
        assert host._cells["slow/0"].mailbox.counters.peak <= 4

    run(main)


@pytest.mark.parametrize("where", ["host", "other"])
def test_asks_that_race_for_a_place_never_pass_the_bound(where: str) -> None:
    """A place that was given to one who waited was once taken by a newcomer too."""

    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        slow, runtime = Slow(0.5), {"host": host, "other": other}[where]
        await runtime.add(slow, "slow/0")

        async def ask(number: int) -> None:
            await host.context.clock.sleep(number * 0.1)
            await host.context.ask("slow/0", Number(number), timeout_s=1e3)

        await asyncio.gather(*(ask(number) for number in range(60)))
        assert len(slow.heard) == 60
        assert runtime._cells["slow/0"].mailbox.counters.peak <= 4

    run(main)


def test_credit_that_was_lost_with_a_connection_is_granted_anew() -> None:
    """Fault 25: all grants were lost, and no later message shows it. The sender's deadline makes the peer speak."""

    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        slow = Slow(0.01)
        await other.add(slow, "slow/0")
        tell = host.context.tell
        await tell("slow/0", Number(0))
        await host.context.clock.sleep(1.0)
        network.lose("other", "host", Lane.CONTROL, 100)
        for number in range(1, 4):
            await tell("slow/0", Number(number))
        await host.context.clock.sleep(1.0)
        network.lose("other", "host", Lane.CONTROL, -100 + network.num_lost)
        sent = 0
        for number in range(200, 240):
            try:
                await tell("slow/0", Number(number), timeout_s=5.0)
                sent += 1
            except (DeadlineExceeded, PeerLost):
                await host.context.clock.sleep(0.1)
        assert network.num_lost > 0
        assert sent >= 37, "a deadline and a gap, then credit as before"

    run(main)


def test_one_that_talks_much_does_not_starve_the_others() -> None:
    """Fault 31: each sending process has a window of its own, and one mailbox gives the loop away in between."""

    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        slow = Slow(0.01)
        await other.add(slow, "slow/0")
        third = Runtime(network, directory=host.address, incarnation="third")
        await third.start()

        async def talk() -> None:
            for number in range(1000):
                await host.context.tell("slow/0", Number(number), timeout_s=1e3)

        talking = asyncio.ensure_future(talk())
        await host.context.clock.sleep(0.5)
        began_s = host.clock.time()
        await third.context.ask("slow/0", Number(-1), timeout_s=5)
        assert host.clock.time() - began_s < 0.1, "behind one window of the other, not behind all it has to say"
        talking.cancel()
        await third.stop()

    run(main)


def test_ten_thousand_actors_in_one_process() -> None:
    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        actors = [Slow(0.0) for _ in range(10_000)]
        for index, actor in enumerate(actors):
            host._host(actor, f"slow/{index}")
        ask = host.context.ask
        for start in range(0, 10_000, 500):
            await asyncio.gather(*(ask(f"slow/{i}", Number(i), timeout_s=60) for i in range(start, start + 500)))
        assert all(actor.heard == [index] for index, actor in enumerate(actors))

    run(main)


def test_replies_are_bounded_by_the_asks() -> None:
    """Replies of half a megabyte need no credit: no more are under way than were asked for."""

    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        slow = Slow(0.0)
        await other.add(slow, "slow/0")
        arriving = 0

        def tap(now_s: float, source: str, target: str, lane: Lane, frames: Any) -> None:
            nonlocal arriving
            arriving += lane is Lane.BULK

        network.tap = tap
        asks = [asyncio.ensure_future(host.context.ask("slow/0", Number(i), timeout_s=60)) for i in range(50)]
        await asyncio.gather(*asks)
        assert arriving == 50
        assert len(other._links._links["host"].serving) == 0
        assert len(host._calls) == 0

    run(main)


def test_a_stream_is_bounded_by_its_window() -> None:
    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        slow = Slow(0.0)
        await other.add(slow, "slow/0")
        taken = 0
        async for item in host.context.stream("slow/0", Count(1000), timeout_s=60):
            taken += 1
            await host.context.clock.sleep(0.01)
            assert slow.produced - taken <= STREAM_WINDOW + 1
            assert item == Number(taken - 1)
        assert taken == 1000

    run(main)


def test_tell_soon_never_waits_and_counts_what_it_drops() -> None:
    async def main(network: LoopbackNetwork, host: Runtime, other: Runtime) -> None:
        slow = Slow(1.0)
        await other.add(slow, "slow/0")
        await host.context.tell("slow/0", Number(-1))
        sent = sum(host.context.tell_soon("slow/0", Number(number)) for number in range(100))
        assert sent == 3
        assert host._outbound.tells_dropped == 97
        host.directory.process_down("other", "killed")
        with pytest.raises((PeerLost, DeadlineExceeded)):
            await host.context.ask("slow/0", Number(0), timeout_s=1)
        assert not host.context.tell_soon("slow/0", Number(0))

    run(main)
