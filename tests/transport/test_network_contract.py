"""What every network must give the runtimes that it joins: two runtimes, one event loop, real frames between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.transport import (
    ActivityQuery,
    Actor,
    Address,
    DeadlineExceeded,
    MailboxBound,
    Network,
    NotHandled,
    Oversize,
    PeerLost,
    Refused,
    RemoteError,
    Runtime,
    UnknownActor,
    UnknownMessage,
)
from headrace.transport.network import Lane

Make = Callable[[], Network]


@asynccontextmanager
async def pair(make_network: Make, **options: Any) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """The directory's runtime and another one."""
    network = make_network()
    host = Runtime(network, **options)
    await host.start()
    other = Runtime(network, directory=host.address, **options)
    await other.start()
    try:
        yield host, other
    finally:
        await other.stop()
        await host.stop()


def run(main: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main, 60)

    asyncio.run(bounded())


def test_ask_gets_the_reply_and_errors_by_name(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        async with pair(make_network) as (host, other):
            await other.add(samples.Echo(), "echo/0")
            ask = host.context.ask
            assert await ask("echo", samples.Say("hi"), timeout_s=5) == samples.Say("hi")
            assert await ask("echo/0", samples.Number(1), timeout_s=5) is None
            with pytest.raises(RemoteError, match="cannot say boom") as error:
                await ask("echo/0", samples.Say("boom"), timeout_s=5)
            assert error.value.error_type == "ValueError"
            assert "in say" in error.value.remote_traceback
            with pytest.raises(NotHandled, match="does not handle Unhandled"):
                await ask("echo/0", samples.Unhandled(), timeout_s=5)
            with pytest.raises(UnknownMessage):
                await ask("echo/0", object(), timeout_s=5)
            assert await ask("echo/0", samples.Say("still here"), timeout_s=5) == samples.Say("still here")

    run(main())


def test_tells_and_asks_keep_their_order(make_network: Make, samples: SimpleNamespace) -> None:
    """3000 numbered messages arrive, all of them, in order (cases I119: zeromq/pyzmq#1925)."""

    async def main() -> None:
        async with pair(make_network) as (host, other):
            echo = samples.Echo()
            await other.add(echo, "echo/0")
            for value in range(3000):
                await host.context.tell("echo/0", samples.Number(value))
            await host.context.ask("echo/0", samples.Number(-1), timeout_s=10)
            assert [m.value for m in echo.heard] == [*range(3000), -1]

    run(main())


def test_a_deadline_ends_an_ask_and_cancels_the_handler(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        async with pair(make_network) as (host, other):
            echo = samples.Echo()
            await other.add(echo, "echo/0")
            with pytest.raises(DeadlineExceeded, match=r"echo/0 .* within 0.05 s"):
                await host.context.ask("echo/0", samples.Nap(60), timeout_s=0.05)
            await samples.until(lambda: echo.cancelled == 1)
            ask = asyncio.ensure_future(host.context.ask("echo/0", samples.Nap(60), timeout_s=60))
            await samples.until(lambda: echo.napping == 1)
            ask.cancel()
            await samples.until(lambda: echo.cancelled == 2)
            assert (await host.context.ask("echo/0", ActivityQuery(), timeout_s=5)).mailbox["running"] == 0

    run(main())


def test_streams_flow_end_fail_and_stop(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        async with pair(make_network) as (host, other):
            echo = samples.Echo()
            await other.add(echo, "echo/0")
            stream = host.context.stream
            assert [n.value async for n in stream("echo/0", samples.Count(500), timeout_s=5)] == list(range(500))
            with pytest.raises(RemoteError, match="count down"):
                await anext(stream("echo/0", samples.Count(-1), timeout_s=5))
            echo.produced = 0
            async with aclosing(stream("echo/0", samples.Count(100_000), timeout_s=5)) as items:
                async for _ in items:
                    break
            snapshot: Any = None
            while snapshot is None or snapshot.mailbox["running"]:
                snapshot = await host.context.ask("echo/0", ActivityQuery(), timeout_s=5)
            assert echo.produced <= 200, "the consumer's window bounds the producer"

    run(main())


def test_large_arrays_travel_in_their_own_frame(make_network: Make, samples: SimpleNamespace) -> None:
    """Also over 100 MiB (cases I115: msgpack/msgpack-python#503)."""

    async def main() -> None:
        async with pair(make_network) as (host, other):
            await other.add(samples.Echo(), "echo/0")
            for num in (0, 10, 9_000, 101 * 1024 * 1024 // 8):
                sent = np.arange(num, dtype=np.int64)
                reply = await host.context.ask("echo/0", samples.Array(sent), timeout_s=30)
                assert reply.values.dtype == sent.dtype
                assert np.array_equal(reply.values, sent)
            large = np.zeros(100_000)
            await host.context.tell("echo/0", samples.Array(large))
            with pytest.raises(ValueError, match="read-only"):
                large[0] = 1.0  # what travels without a copy must not change

    run(main())


def test_credit_holds_a_fast_sender_back(make_network: Make, samples: SimpleNamespace) -> None:
    """A slow consumer: the producer waits, the mailbox keeps its bound, control still answers."""

    async def main() -> None:
        async with pair(make_network) as (host, other):
            echo = samples.Echo()
            echo.mailbox = MailboxBound(capacity=16)
            await other.add(echo, "echo/0")
            sent = 0

            async def flood() -> None:
                nonlocal sent
                await host.context.tell("echo/0", samples.Say("gate"))
                for value in range(200):
                    await host.context.tell("echo/0", samples.Number(value))
                    sent += 1

            task = asyncio.ensure_future(flood())
            await samples.until(lambda: sent == 15)
            snapshot = await host.context.ask("echo/0", ActivityQuery(), timeout_s=5)
            assert sent == 15
            assert snapshot.mailbox["waiting"] + snapshot.mailbox["running"] <= 16
            assert not host.context.tell_soon("echo/0", samples.Number(0))
            with pytest.raises(DeadlineExceeded, match="no credit"):
                await host.context.tell("echo/0", samples.Number(0), timeout_s=0.02)
            echo.gate.set()
            await task
            assert sent == 200
            await samples.until(lambda: len(echo.heard) == 201)

    run(main())


def test_a_full_mailbox_refuses_or_drops_by_its_policy(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        async with pair(make_network) as (_host, other):
            for index, overflow in enumerate(("refuse", "drop_oldest")):
                echo = samples.Echo()
                echo.mailbox = MailboxBound(capacity=2, overflow=overflow)
                name = f"echo/{index}"
                await other.add(echo, name)
                # Asks from the actor's own process do not meet the sender's window.
                asks = []
                for text in ("gate", "a", "b"):
                    asks.append(asyncio.ensure_future(other.context.ask(name, samples.Say(text), timeout_s=5)))
                    await samples.until(lambda echo=echo: echo.heard)
                await samples.until(lambda asks=asks: any(ask.done() for ask in asks))
                echo.gate.set()
                replies = await asyncio.gather(*asks, return_exceptions=True)
                refused = [type(reply) is Refused for reply in replies]
                assert refused == ([False, False, True] if overflow == "refuse" else [False, True, False])

    run(main())


def test_the_death_of_a_process_ends_what_waits_for_it(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        async with pair(make_network) as (host, other):
            watcher = samples.Watcher(role="echo")
            await host.add(watcher, "watcher/0")
            await other.add(samples.Echo(), "echo/0")
            await samples.until(lambda: len(watcher.news) == 1)
            ask = asyncio.ensure_future(host.context.ask("echo/0", samples.Nap(60), timeout_s=60))
            stream = host.context.stream("echo/0", samples.Nap(60), timeout_s=60)
            item = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.02)
            host.directory.process_down(other.incarnation, "killed by signal 9")
            for waiting in (ask, item):
                with pytest.raises(PeerLost, match="killed by signal 9") as error:
                    await waiting
                assert error.value.incarnation == other.incarnation
            await samples.until(lambda: len(watcher.news) == 2)
            assert watcher.news[1].reason == "killed by signal 9"
            with pytest.raises(UnknownActor, match=r"no actor 'echo/0'.*watcher/0"):
                await host.context.ask("echo/0", samples.Say("hi"), timeout_s=0.05)

    run(main())


def test_a_restarted_actor_is_found_again(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        network = make_network()
        host = Runtime(network)
        await host.start()
        try:
            for incarnation in ("first", "second"):
                other = Runtime(network, directory=host.address, incarnation=incarnation)
                await other.start()
                await other.add(samples.Echo(), "echo/0")
                assert await host.context.ask("echo/0", samples.Say(incarnation), timeout_s=5)
                await other.stop()
                host.directory.process_down(incarnation, "stopped")
        finally:
            await host.stop()

    run(main())


def test_an_ask_waits_for_a_name_that_appears(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        async with pair(make_network) as (host, other):
            ask = asyncio.ensure_future(host.context.ask("echo/0", samples.Say("early"), timeout_s=10))
            await asyncio.sleep(0)
            await other.add(samples.Echo(), "echo/0")
            assert await ask == samples.Say("early")

    run(main())


def test_hostile_bytes_are_counted_and_the_actor_lives(make_network: Make, samples: SimpleNamespace) -> None:
    """Random bytes, pickles, foreign envelopes on each lane (cases H113: ModelTC/LightLLM#1413)."""
    import pickle
    import random

    import msgpack

    async def main() -> None:
        network = make_network()
        host = Runtime(network)
        await host.start()
        attacker = await network.open("attacker", lambda lane, frames: None)
        try:
            await host.add(samples.Echo(), "echo/0")
            noise = random.Random(0)
            mine, own = host.incarnation, str(attacker.address)
            prefix = ["headrace/1", "attacker", mine, 0]
            bad: list[bytes] = [noise.randbytes(noise.randrange(200)) for _ in range(200)]
            bad += [pickle.dumps(print), b"", b"\x90", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000]
            bad += [
                msgpack.packb(v) for v in ({}, [], ["headrace/1"], [*prefix, "x"], [*prefix, 0, [1]], [*prefix, -5])
            ]
            for frame in bad:
                for lane in Lane:
                    attacker.send(Address.parse(str(host.address)), lane, [frame])
            counters = host._links.counters
            await samples.until(lambda: counters.malformed == 2 * len(bad))
            # A peer that says hello and then talks nonsense
            envelopes = [
                [0, own],
                [1, 1, "echo/0", False, 5, None],
                [1, 2, "echo/0", False, 5, ["test.say", 1, {"text": 3}]],
            ]
            envelopes += [[3, 1, 5, None], [99], [1], "x", [8, "echo/0", 0, -1, -1], [9, 1, -1], [10, 7], [7, 12345]]
            attacker.send(host.address, Lane.CONTROL, [msgpack.packb([*prefix, 0, *envelopes])])
            await samples.until(lambda: counters.malformed == 2 * len(bad) + 3)
            assert counters.late_replies == 1
            wrong = msgpack.packb(["headrace/1", "attacker", "somebody else", 0, 1])
            attacker.send(host.address, Lane.CONTROL, [wrong])
            await samples.until(lambda: counters.other_incarnation == 1)
            assert await host.context.ask("echo/0", samples.Say("alive"), timeout_s=5) == samples.Say("alive")
        finally:
            await attacker.close(0.0)
            await host.stop()

    run(main())


def test_the_sender_checks_the_size_limit(make_network: Make, samples: SimpleNamespace) -> None:
    """An oversize message is an error at its sender, not silence (cases I115)."""

    async def main() -> None:
        async with pair(make_network, max_message_bytes=1 << 20) as (host, other):
            await other.add(samples.Echo(), "echo/0")
            with pytest.raises(Oversize, match="limit of 1048576"):
                await host.context.ask("echo/0", samples.Array(np.zeros(1 << 18)), timeout_s=5)
            with pytest.raises(Oversize):
                await host.context.tell("echo/0", samples.Say("x" * (1 << 20)))
            assert await host.context.ask("echo/0", samples.Say("small"), timeout_s=5)

    run(main())


def test_lost_batches_end_in_an_error_and_full_windows(make_network: Make, samples: SimpleNamespace) -> None:
    """A connection that loses messages: the pending ask fails by name, credit is granted anew."""

    async def main() -> None:
        async with pair(make_network) as (host, other):
            echo = samples.Echo()
            echo.mailbox = MailboxBound(capacity=4)
            await other.add(echo, "echo/0")
            await host.context.ask("echo/0", samples.Say("hello"), timeout_s=5)
            link = host._links._links[other.incarnation]
            send = host._links._port.send  # type: ignore[union-attr]
            link._port.send = lambda *args: None  # type: ignore[method-assign]
            for value in range(3):
                await host.context.tell("echo/0", samples.Number(value))
            await asyncio.sleep(0.01)
            link._port.send = send  # type: ignore[method-assign]
            ask = asyncio.ensure_future(host.context.ask("echo/0", samples.Nap(60), timeout_s=60))
            with pytest.raises(PeerLost, match="connection broke"):
                await ask
            assert other._links.counters.lost_batches >= 1
            for value in range(20):
                await host.context.tell("echo/0", samples.Number(value), timeout_s=5)
            await samples.until(lambda: sum(isinstance(m, samples.Number) for m in echo.heard) == 20)

    run(main())


def test_an_actor_that_leaves_ends_its_asks(make_network: Make, samples: SimpleNamespace) -> None:
    async def main() -> None:
        async with pair(make_network) as (host, other):
            await other.add(samples.Echo(), "echo/0")
            ask = asyncio.ensure_future(host.context.ask("echo/0", samples.Nap(60), timeout_s=60))
            await asyncio.sleep(0.02)
            await other.stop(reason="scaled down")
            with pytest.raises(PeerLost, match="scaled down"):
                await ask

    run(main())


def test_an_actor_may_ask_across_while_it_serves(make_network: Make, samples: SimpleNamespace) -> None:
    """A call cycle A → B → A on serial handlers ends by its deadline and both live."""

    class Asker(Actor):
        peer = ""

        from headrace.transport import handles

        @handles(samples.Say)
        async def say(self, message: Any) -> Any:
            return await self.context.ask(self.peer, message, timeout_s=0.1)

    async def main() -> None:
        async with pair(make_network) as (host, other):
            one, two = Asker(), Asker()
            one.peer, two.peer = "two/0", "one/0"
            await host.add(one, "one/0")
            await other.add(two, "two/0")
            await samples.until(lambda: host.context.group("two").members() == ["two/0"])
            with pytest.raises(RemoteError, match="DeadlineExceeded"):
                await host.context.ask("one/0", samples.Say("round"), timeout_s=5)
            assert (await host.context.ask("two/0", ActivityQuery(), timeout_s=5)).name == "two/0"

    run(main())
