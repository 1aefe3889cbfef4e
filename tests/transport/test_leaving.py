"""A process leaves in mid-run: nobody gives it new work, it finishes what it has, and then it is gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from headrace.transport import (
    Actor,
    Context,
    LoopbackNetwork,
    PeerDown,
    PeerLeaving,
    PeerUp,
    Runtime,
    UnknownActor,
    handles,
    message,
    run_virtual,
)
from headrace.transport.leaving import QUIET_S


@message("leaving.nap")
@dataclass(frozen=True, slots=True)
class Nap:
    takes_s: float


class Sleeper(Actor):
    """`errands` it has beside its messages."""

    def __init__(self) -> None:
        self.errands = 0

    def has_work(self) -> bool:
        return self.errands > 0

    @handles(Nap, concurrent=True)
    async def nap(self, message: Nap) -> Nap:
        await self.context.clock.sleep(message.takes_s)
        return message


class Watcher(Actor):
    def __init__(self) -> None:
        self.news: list[tuple[str, str]] = []

    async def on_start(self, context: Context) -> None:
        context.watch("sleeper")

    @handles(PeerUp)
    async def up(self, message: PeerUp) -> None:
        self.news.append(("up", message.name))

    @handles(PeerLeaving)
    async def leaving(self, message: PeerLeaving) -> None:
        self.news.append(("leaving", message.name))

    @handles(PeerDown)
    async def down(self, message: PeerDown) -> None:
        self.news.append(("down", message.name))


class Family:
    """A host with a watcher, and two processes with a sleeper each."""

    async def __aenter__(self) -> Family:
        network = LoopbackNetwork()
        self.host = Runtime(network)
        await self.host.start()
        self.watcher, self.sleepers, self.runtimes = Watcher(), [Sleeper(), Sleeper()], []
        await self.host.add(self.watcher, "watcher/0")
        for index, sleeper in enumerate(self.sleepers):
            runtime = Runtime(network, directory=self.host.address)
            await runtime.start()
            await runtime.add(sleeper, f"sleeper/{index}")
            self.runtimes.append(runtime)
        return self

    async def __aexit__(self, *_: object) -> None:
        for runtime in (*self.runtimes, self.host):
            await runtime.stop()

    def leave(self) -> Runtime:
        self.host.directory.process_leaving(self.runtimes[1].incarnation)
        return self.runtimes[1]


def test_groups_leave_it_out_and_who_names_it_reaches_it() -> None:
    async def main() -> None:
        async with Family() as family:
            context, other = family.host.context, family.runtimes[0].context
            at_hand = asyncio.ensure_future(context.ask("sleeper/1", Nap(5), timeout_s=60))
            await asyncio.sleep(1)
            leaver = family.leave()
            await asyncio.sleep(0.1)
            assert context.group("sleeper").members() == other.group("sleeper").members() == ["sleeper/0"]
            assert leaver.context.leaving
            assert not other.leaving
            assert {other.group("sleeper").pick(str(key)) for key in range(20)} == {"sleeper/0"}
            assert await context.ask("sleeper/1", Nap(1), timeout_s=5) == Nap(1)
            with pytest.raises(UnknownActor, match="did not reach 2 members"):
                await other.group("sleeper").wait_for(2, timeout_s=1)
            assert await at_hand == Nap(5)
            assert not leaver.left.done()
            await leaver.left
            assert asyncio.get_running_loop().time() < 6 + 3 * QUIET_S
            await asyncio.sleep(0.1)
            assert family.watcher.news[2:] == [("leaving", "sleeper/1"), ("down", "sleeper/1")]
            assert context.everybody() == ["sleeper/0", "watcher/0"]

    run_virtual(main())


def test_it_stays_while_an_actor_says_that_it_has_work() -> None:
    async def main() -> None:
        async with Family() as family:
            family.sleepers[1].errands = 1
            leaver = family.leave()
            await asyncio.sleep(100)
            assert not leaver.left.done()
            family.sleepers[1].errands = 0
            await asyncio.sleep(3 * QUIET_S)
            assert leaver.left.done()

    run_virtual(main())


def test_one_that_dies_while_it_leaves_is_down_and_nobody_leaves_twice() -> None:
    async def main() -> None:
        async with Family() as family:
            leaver = family.leave()
            family.leave()
            family.host.directory.process_down(leaver.incarnation, "killed")
            family.leave()
            await asyncio.sleep(0.1)
            assert family.watcher.news[2:] == [("leaving", "sleeper/1"), ("down", "sleeper/1")]

    run_virtual(main())


def test_who_comes_later_learns_who_is_leaving() -> None:
    async def main() -> None:
        async with Family() as family:
            family.sleepers[1].errands = 1
            family.leave()
            late = Runtime(family.host._network, directory=family.host.address)
            await late.start()
            watcher = Watcher()
            await late.add(watcher, "watcher/1")
            await asyncio.sleep(0.1)
            assert watcher.news == [("up", "sleeper/0")]
            assert await late.context.ask("sleeper/1", Nap(1), timeout_s=5) == Nap(1)
            await late.stop()

    run_virtual(main())
