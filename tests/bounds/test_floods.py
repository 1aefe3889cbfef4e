"""A producer a hundred times faster than its consumer, on every edge of the topology: nothing grows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from edges import Edge, all_edges, own_messages, sample, spoken

from headrace.transport import ActivityQuery, Actor, LoopbackNetwork, Runtime, run_virtual

EDGES = all_edges()
PRODUCE_EVERY_S = 0.001
SLOWER = 100
ASKS_BEYOND = 50
"""asks that the producer has open beyond the receiver's window"""


def test_every_message_says_who_sends_it_to_whom_and_its_receivers_handle_it() -> None:
    """So that a new message without a place in these tests fails them."""
    replies = {"Accepted", "SessionsHeld", "Completion", "Batch", "WeightsStaged", "WeightsCommitted"}
    replies |= {"GroupReady", "GroupOpened", "GroupJoined", "WeightsSent", "GroupAborted"}
    replies |= {"WeightsLocal", "WeightsBucket", "EngineAsleep"}
    handled = {(edge.receiver, edge.message) for edge in EDGES}
    for message in own_messages():
        if message.__name__ in replies:
            continue
        said = spoken(message)
        assert said, f"{message.__name__}: its docstring must begin with 'sender → receiver (ask|tell'"
        for _, receivers, _ in said:
            for receiver in receivers:
                assert (receiver, message) in handled, f"{receiver} does not handle {message.__name__}"
    for edge in EDGES:
        assert edge.senders, f"{edge.message.__name__} is handled by {edge.receiver}, but its docstring does not say so"


def consumer(edge: Edge) -> Actor:
    """An actor with the receiving kind's own mailbox and manner of handling, and a handler that only takes its time."""

    class Slow(Actor):
        handlers = {edge.message: edge.spec}  # noqa: RUF012
        mailbox = edge.bound

        def __init__(self) -> None:
            self.handled = 0
            self.one_at_a_time = asyncio.Lock()  # concurrent handlers share what makes them slow

    async def take(self: Slow, message: object) -> None:
        async with self.one_at_a_time:
            await self.context.clock.sleep(SLOWER * PRODUCE_EVERY_S)
        self.handled += 1

    setattr(Slow, edge.spec.method, take)
    return Slow()


class Flood:
    """`peaks`: the most that ever waited, by place."""

    def __init__(self, edge: Edge, sender: Runtime, receiver: Runtime, name: str) -> None:
        self.edge, self.sender, self.receiver, self.name = edge, sender, receiver, name
        self.peaks = {"mailbox": 0, "serving": 0, "outstanding": 0, "waiters": 0, "calls": 0, "outbox_bytes": 0}

    def look(self) -> None:
        out = self.sender._links._links[self.receiver.incarnation]
        back = self.receiver._links._links.get(self.sender.incarnation)
        credit = out._credits.get(self.name)
        now = {
            "mailbox": len(self.receiver._cells[self.name].mailbox),
            "serving": len(back.serving) if back is not None else 0,
            "outstanding": credit.outstanding if credit is not None else 0,
            "waiters": len(credit._waiters) if credit is not None else 0,
            "calls": len(self.sender._calls),
            "outbox_bytes": out.waiting_bytes + (back.waiting_bytes if back is not None else 0),
        }
        self.peaks = {place: max(most, now[place]) for place, most in self.peaks.items()}

    async def produce(self, num: int) -> list[object]:
        """Returns the errors that the producer saw."""
        context, message = self.sender.context, sample(self.edge.message)
        tickets = asyncio.Semaphore(self.edge.bound.capacity + ASKS_BEYOND)
        errors: list[object] = []

        async def one() -> None:
            try:
                await context.ask(self.name, message, timeout_s=1e6)
            except Exception as error:
                errors.append(error)
            finally:
                tickets.release()

        async with asyncio.TaskGroup() as asks:
            for number in range(num):
                if number % 64 == 0:
                    await context.clock.sleep(64 * PRODUCE_EVERY_S)
                if self.edge.manner == "ask":
                    await tickets.acquire()
                    asks.create_task(one())
                else:
                    await context.tell(self.name, message, timeout_s=1e6)
                if number % 16 == 0:
                    self.look()
        return errors


async def with_two_runtimes(main: Callable[[Runtime, Runtime], Coroutine[Any, Any, None]]) -> None:
    network = LoopbackNetwork()
    host = Runtime(network, incarnation="host")
    await host.start()
    other = Runtime(network, directory=host.address, incarnation="other")
    await other.start()
    try:
        await main(host, other)
    finally:
        await other.stop()
        await host.stop()


@pytest.mark.parametrize("edge", EDGES, ids=str)
def test_a_consumer_a_hundred_times_slower(edge: Edge) -> None:
    """What waits stays below the mailbox's bound, wherever one looks; control is answered at once all the while; all
    that was sent is handled, or counted as dropped or refused."""
    bound = edge.bound
    num = bound.capacity + 600

    async def main(host: Runtime, other: Runtime) -> None:
        actor = consumer(edge)
        name = f"{edge.receiver}/0"
        await other.add(actor, name)
        await host.context.ask(name, ActivityQuery(), timeout_s=5)
        flood = Flood(edge, host, other, name)
        producing = asyncio.ensure_future(flood.produce(num))
        while not producing.done():
            asked_s = host.clock.time()
            await host.context.ask(name, ActivityQuery(), timeout_s=5)
            assert host.clock.time() - asked_s < 0.1, "a full mailbox must not hold up the question why"
            flood.look()
            await asyncio.wait([producing], timeout=200 * SLOWER * PRODUCE_EVERY_S)
        errors = await producing
        counters = other._cells[name].mailbox.counters
        while counters.handled + counters.dropped + counters.refused < num:
            await host.clock.sleep(10.0)
        assert counters.received == num
        assert actor.handled == counters.handled
        assert bound.overflow != "block" or counters.handled == num
        assert not errors
        peaks = flood.peaks
        for place in ("mailbox", "serving", "outstanding"):
            assert peaks[place] <= bound.capacity, peaks
        assert peaks["outstanding"] > bound.capacity // 2, "the flood must reach the bound, or it proves nothing"
        assert peaks["waiters"] <= ASKS_BEYOND + 1 + bound.capacity // 4, f"{peaks}: a quarter is told late"
        assert peaks["calls"] <= bound.capacity + ASKS_BEYOND + 2, peaks
        assert peaks["outbox_bytes"] <= 64 * 1024, peaks
        assert len(host._calls) == 0

    run_virtual(with_two_runtimes(main))
