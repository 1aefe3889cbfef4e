"""Each wait on a peer that is there but silent ends by its own deadline, by name."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.transport import (
    Actor,
    Context,
    DeadlineExceeded,
    LoopbackNetwork,
    MailboxBound,
    Runtime,
    RuntimeStopped,
    UnknownActor,
    WaitQuery,
    WaitReport,
    handles,
    run_virtual,
)
from headrace.transport.cell import CANCEL_GRACE_S
from headrace.transport.ports import ROOM_TIMEOUT_S


async def pair() -> tuple[Runtime, Runtime]:
    network = LoopbackNetwork()
    host = Runtime(network)
    await host.start()
    other = Runtime(network, directory=host.address)
    await other.start()
    return host, other


@pytest.mark.parametrize("here", [True, False], ids=["one process", "two processes"])
def test_asks_tells_and_streams_to_a_full_mailbox(samples: SimpleNamespace, here: bool) -> None:
    async def main() -> None:
        host, other = await pair()
        echo = samples.Echo()
        echo.mailbox = MailboxBound(capacity=1)
        await other.add(echo, "echo/0")
        context = (other if here else host).context
        if here:  # the host's copy of the directory is the other's news
            await host.context.group("echo").wait_for(1, timeout_s=1)
        held = asyncio.ensure_future(context.ask("echo", samples.Say("gate"), timeout_s=1000))
        await context.clock.sleep(1)
        began_s = context.clock.time()
        with pytest.raises(DeadlineExceeded, match="echo/0"):
            await context.ask("echo", samples.Say("more"), timeout_s=3)
        with pytest.raises(DeadlineExceeded, match="echo/0"):
            await context.tell("echo", samples.Say("more"), timeout_s=3)
        with pytest.raises(DeadlineExceeded, match="echo/0"):
            await context.group("echo").tell(samples.Say("more"), timeout_s=3)
        streaming = asyncio.ensure_future(anext(context.stream("echo", samples.Count(3), timeout_s=3)))
        await context.clock.sleep(1)
        report: WaitReport = await context.ask(context.name, WaitQuery(), timeout_s=1)
        assert [(wait.what, wait.no_credit) for wait in report.waits[:2]] == [("Say", True), ("Count", True)]
        with pytest.raises(DeadlineExceeded, match="echo/0"):
            await streaming
        assert context.clock.time() - began_s == 12
        echo.gate.set()
        await held
        await other.stop()
        await host.stop()

    run_virtual(main())


def test_members_that_never_come(samples: SimpleNamespace) -> None:
    async def main() -> None:
        host, other = await pair()
        group = host.context.group("nobody")
        for wait in (
            group.ask(samples.Say("x"), timeout_s=5),
            group.tell(samples.Say("x"), timeout_s=5),
            group.wait_for(2, timeout_s=5),
        ):
            began_s = host.clock.time()
            with pytest.raises(UnknownActor, match="'nobody'"):
                await wait
            assert host.clock.time() - began_s == 5
        await other.stop()
        await host.stop()

    run_virtual(main())


def test_a_producer_whose_consumer_takes_nothing(samples: SimpleNamespace) -> None:
    """The consumer lives, holds its stream open and looks away: the producer's place in its mailbox is not held for
    ever."""

    async def main() -> None:
        host, other = await pair()
        echo = samples.Echo()
        await other.add(echo, "echo/0")
        stream = host.context.stream("echo", samples.Count(1000), timeout_s=10)
        await anext(stream)
        await host.clock.sleep(ROOM_TIMEOUT_S + 10)
        report: WaitReport = await host.context.ask("echo", WaitQuery(), timeout_s=1)
        assert report.tasks == ()
        with pytest.raises(Exception, match=f"taken none of its items for {ROOM_TIMEOUT_S:g} s"):
            async for _ in stream:
                pass
        await other.stop()
        await host.stop()

    run_virtual(main())


def test_stopping_an_actor_whose_task_ignores_its_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Actor):
        async def on_start(self, context: Context) -> None:
            context.spawn(self.work(), "work")

        async def work(self) -> None:
            while self.context.clock.time() < 1000:
                try:
                    await self.context.clock.sleep(1000 - self.context.clock.time())
                except asyncio.CancelledError:
                    continue

    async def main() -> None:
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        await runtime.add(Stubborn(), "stubborn/0")
        await runtime.clock.sleep(1)
        await runtime.stop()
        assert runtime.clock.time() <= 1 + CANCEL_GRACE_S

    caplog.set_level(logging.WARNING)
    run_virtual(main())
    assert "stubborn/0:work ignores its cancellation" in caplog.text


def test_a_cycle_of_three_over_serial_handlers(samples: SimpleNamespace) -> None:
    """messaging fault 22: A → B → C → A, each in another place: the shortest deadline breaks it, the others answer."""

    class Ring(Actor):
        def __init__(self, to: str) -> None:
            self.to = to

        @handles(samples.Say)
        async def say(self, message: Any) -> Any:
            try:
                return await self.context.ask(self.to, message, timeout_s=7)
            except DeadlineExceeded:
                return samples.Say(f"{self.to} is silent")

    async def main() -> None:
        host, other = await pair()
        await host.add(Ring("b"), "a/0")
        await other.add(Ring("c"), "b/0")
        await other.add(Ring("a"), "c/0")
        reply = await host.context.ask("a", samples.Say("round"), timeout_s=60)
        assert reply.text.endswith("is silent")
        assert host.clock.time() == pytest.approx(7, abs=0.1)
        await other.stop()
        await host.stop()

    run_virtual(main())


@pytest.mark.parametrize("to", ["echo/0", "nobody/0"])
def test_a_deadline_that_is_no_number_is_refused(to: str, samples: SimpleNamespace) -> None:
    """One of them stopped the timer of all deadlines of its runtime."""

    async def main() -> None:
        host, other = await pair()
        await host.add(samples.Echo(), "echo/0")
        context, nan = other.context, float("nan")
        with pytest.raises(ValueError, match="timeout_s must be a number of seconds, got nan"):
            await context.ask(to, samples.Say("x"), timeout_s=nan)
        with pytest.raises(ValueError, match="got nan"):
            await context.tell(to, samples.Say("x"), timeout_s=nan)
        with pytest.raises(ValueError, match="got nan"):
            await anext(context.stream(to, samples.Count(3), timeout_s=nan))
        with pytest.raises(ValueError, match="got nan"):
            await context.group("nobody").wait_for(1, timeout_s=nan)
        await other.stop()
        await host.stop()

    run_virtual(main())


def test_who_waits_for_a_name_hears_that_its_runtime_stops(samples: SimpleNamespace) -> None:
    async def main() -> None:
        host, other = await pair()
        context = other.context
        waits = [
            asyncio.ensure_future(context.ask("nobody/0", samples.Say("x"), timeout_s=3600)),
            asyncio.ensure_future(context.tell("nobody/0", samples.Say("x"), timeout_s=3600)),
            asyncio.ensure_future(anext(context.stream("nobody/0", samples.Count(3), timeout_s=3600))),
            asyncio.ensure_future(context.group("nobody").wait_for(1, timeout_s=3600)),
        ]
        await asyncio.sleep(1)
        await other.stop()
        for wait in waits:
            with pytest.raises(RuntimeStopped):
                await wait
        with pytest.raises(RuntimeStopped):
            await context.ask("nobody/0", samples.Say("x"), timeout_s=3600)
        assert other.clock.time() < 60
        await host.stop()

    run_virtual(main())
