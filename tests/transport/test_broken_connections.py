"""What a broken connection takes comes to light, whether or not anything follows it: the greeting, the directory's last
change, and asks that are insisted on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.transport import DeadlineExceeded, LoopbackNetwork, RemoteError, Runtime, insist, run_virtual
from headrace.transport.directory import DirectoryState
from headrace.transport.network import Lane
from headrace.transport.system import ActorRecord

Body = Callable[[LoopbackNetwork, Runtime, Runtime, Runtime], Awaitable[None]]


def with_three(body: Body, *, heartbeat_s: float | None = None) -> None:
    """The directory's runtime and two others."""

    async def main() -> None:
        network = LoopbackNetwork(heartbeat_s=heartbeat_s)
        host = Runtime(network)
        await host.start()
        one, other = Runtime(network, directory=host.address), Runtime(network, directory=host.address)
        await one.start()
        await other.start()
        await body(network, host, one, other)
        for runtime in (other, one, host):
            await runtime.stop()

    run_virtual(main())


def test_a_peer_that_missed_the_greeting_hears_it_again(samples):
    async def body(network, host, one, other):
        await other.add(samples.Echo(), "echo/0")
        network.lose(one.incarnation, other.incarnation, Lane.CONTROL, 1)
        with pytest.raises(DeadlineExceeded):
            await one.context.ask("echo", samples.Say("lost"), timeout_s=5)
        answer = await insist(one.context, "echo", samples.Say("hello"), timeout_s=5, patience_s=5)
        assert answer == samples.Say("hello")
        assert other._links.counters.malformed == 0
        assert other._links.counters.lost_batches == 1

    with_three(body)


def test_the_directorys_last_change_is_missed_for_no_longer_than_a_heartbeat(samples):
    async def body(network, host, one, other):
        await host.clock.sleep(10)  # nothing else is under way
        network.lose(host.incarnation, one.incarnation, Lane.CONTROL, 1)
        await other.add(samples.Echo(), "echo/0")
        began_s = one.clock.time()
        assert await one.context.ask("echo", samples.Say("hello"), timeout_s=60) == samples.Say("hello")
        assert network.num_lost == 1
        assert one.clock.time() - began_s <= 1.5

    with_three(body, heartbeat_s=1.0)


@pytest.mark.parametrize("num_lost", [1, 2, 3])
def test_who_joins_over_a_broken_connection_joins(samples, num_lost):
    async def body(network, host, one, other):
        late = Runtime(network, directory=host.address, incarnation="late")
        network.lose("late", host.incarnation, Lane.CONTROL, num_lost)
        await late.start()
        network.lose(host.incarnation, "late", Lane.CONTROL, num_lost)
        await late.add(samples.Echo(), "echo/0")
        assert await one.context.ask("echo", samples.Say("hello"), timeout_s=5) == samples.Say("hello")
        await late.stop()

    with_three(body, heartbeat_s=1.0)


def test_an_actor_that_registers_again_is_not_replaced():
    state = DirectoryState()
    record = ActorRecord("echo/0", "a", "a|loopback:a|loopback:a", {"slots": 3}, 8, 1 << 20)
    assert len(state.register(record)) == 1
    assert state.register(record) == []


def test_insisting_outlasts_lost_asks_and_lost_answers(samples):
    async def body(network, host, one, other):
        echo = samples.Echo()
        await other.add(echo, "echo/0")
        network.lose(one.incarnation, other.incarnation, Lane.CONTROL, 2)
        network.lose(other.incarnation, one.incarnation, Lane.CONTROL, 1)
        answer = await insist(one.context, "echo", samples.Say("hello"), timeout_s=5, patience_s=60)
        assert answer == samples.Say("hello")
        assert len(echo.heard) == 2

    with_three(body)


def test_insisting_ends_at_once_where_the_peer_would_answer_the_same_again(samples):
    async def body(network, host, one, other):
        echo = samples.Echo()
        await other.add(echo, "echo/0")
        with pytest.raises(RemoteError, match="cannot say boom"):
            await insist(one.context, "echo", samples.Say("boom"), timeout_s=5, patience_s=60)
        assert len(echo.heard) == 1

    with_three(body)


def test_insisting_ends_at_once_where_the_caller_knows_that_nothing_will_change(samples):
    async def body(network, host, one, other):
        await other.add(samples.Echo(), "echo/0")
        network.lose(one.incarnation, other.incarnation, Lane.CONTROL, 1)
        began_s = one.clock.time()
        with pytest.raises(DeadlineExceeded):
            await insist(
                one.context, "echo", samples.Say("hello"), timeout_s=5, patience_s=60, final=(DeadlineExceeded,)
            )
        assert one.clock.time() - began_s <= 6

    with_three(body)


def test_insisting_has_an_end(samples):
    async def body(network, host, one, other):
        await other.add(samples.Echo(), "echo/0")
        began_s = one.clock.time()
        network.lose(one.incarnation, other.incarnation, Lane.CONTROL, 10**6)
        with pytest.raises(DeadlineExceeded):
            await insist(one.context, "echo", samples.Say("hello"), timeout_s=5, patience_s=20)
        assert 20 <= one.clock.time() - began_s <= 35

    with_three(body)


@pytest.mark.parametrize("lane", Lane)
def test_a_connection_that_was_given_up_and_comes_back_is_heard(samples, lane):
    """The numbers of its batches began anew, so that the peer took all that followed for repeated."""

    async def body(network, host, one, other):
        await other.add(samples.Echo(), "echo/0")
        for number in range(100):
            await one.context.ask("echo", samples.Say(str(number)), timeout_s=5)
            await one.context.ask("echo", samples.Say("x" * 100_000), timeout_s=5)
        one._links.unreachable(lane, other._links._port.address.endpoint(lane), "three handshakes were broken off")
        for text in ("a", "b" * 100_000, "c"):
            reply = await insist(one.context, "echo", samples.Say(text), timeout_s=5, patience_s=5)
            assert reply == samples.Say(text)
        assert other._links.counters.repeated == 0

    with_three(body)
