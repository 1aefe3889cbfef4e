"""Whatever the learner asks survives a dispatcher that is restarted, and its patience has an end."""

from __future__ import annotations

import asyncio

import pytest

from headrace.actors.learner.dispatcher_link import DispatcherLink
from headrace.actors.messages import Accepted, BatchTrained
from headrace.transport import Actor, LoopbackNetwork, PeerLost, Runtime, UnknownActor, handles, run_virtual


class Dispatcher(Actor):
    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.asked = 0

    @handles(BatchTrained, concurrent=True)
    async def trained(self, message: BatchTrained) -> Accepted:
        self.asked += 1
        if self.silent:
            await self.context.clock.sleep(1e6)
        return Accepted()


@pytest.mark.parametrize("away_s", [0.0, 3.0, 100.0])
def test_the_successor_is_asked_again(away_s):
    async def main():
        network = LoopbackNetwork()
        runtime = Runtime(network)
        await runtime.start()
        first, second = (Runtime(network, directory=runtime.address) for _ in range(2))
        await first.start()
        await second.start()
        await first.add(Dispatcher(silent=True), "dispatcher/0")
        link = DispatcherLink(runtime.context, patience_s=300)
        ask = asyncio.ensure_future(link.ask(BatchTrained(1, ("a",)), timeout_s=60))
        await runtime.clock.sleep(1)
        await first.stop()
        runtime.directory.process_down(first.incarnation, "killed")
        await runtime.clock.sleep(away_s)
        successor = Dispatcher()
        await second.add(successor, "dispatcher/0")
        assert await ask == Accepted()
        assert successor.asked == 1
        await second.stop()
        await runtime.stop()

    run_virtual(main())


def test_patience_ends():
    async def main():
        runtime = Runtime()
        await runtime.start()
        began_s = runtime.clock.time()
        with pytest.raises((PeerLost, UnknownActor)):
            await DispatcherLink(runtime.context, patience_s=50).ask(BatchTrained(1, ()), timeout_s=10)
        assert 60 <= runtime.clock.time() - began_s <= 80
        await runtime.stop()

    run_virtual(main())
