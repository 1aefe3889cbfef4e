"""What an actor says of its waits: for whom, on what, since when, where its tasks stand; also when it has no room."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.transport import (
    Actor,
    Context,
    LoopbackNetwork,
    MailboxBound,
    PeerWait,
    Runtime,
    WaitQuery,
    WaitReport,
    handles,
    run_virtual,
)


def relay_class(samples: SimpleNamespace) -> type[Actor]:
    class Relay(Actor):
        """Hands what it hears to the next actor, and waits for the answer."""

        mailbox = MailboxBound(capacity=2)

        def __init__(self, *, to: str) -> None:
            self.to = to

        async def on_start(self, context: Context) -> None:
            context.spawn(self.tick(), "tick")
            context.spawn(self.watch(), "watch")

        async def tick(self) -> None:
            while True:
                await self.context.clock.sleep(1)

        async def watch(self) -> None:
            with self.context.activity.waiting("moon", "full moon"):
                await asyncio.get_running_loop().create_future()

        @handles(samples.Say)
        async def say(self, message: Any) -> Any:
            return await self.further(message)

        async def further(self, message: Any) -> Any:
            return await self.context.ask(self.to, message, timeout_s=100)

        @handles(samples.Nap, concurrent=True)
        async def nap(self, message: Any) -> None:
            with self.context.activity.working("nap"):
                await self.context.clock.sleep(message.seconds)

    return Relay


def test_waits_name_the_peer_the_message_and_the_place(samples: SimpleNamespace) -> None:
    async def main() -> None:
        network = LoopbackNetwork()
        host = Runtime(network)
        await host.start()
        other = Runtime(network, directory=host.address)
        await other.start()
        relay = relay_class(samples)
        await other.add(relay(to="echo"), "relay/0")
        echo = samples.Echo()
        await host.add(echo, "echo/0")
        asks = [asyncio.ensure_future(host.context.ask("relay", samples.Say("gate"), timeout_s=100)) for _ in range(3)]
        await host.clock.sleep(7)
        report: WaitReport = await host.context.ask("relay", WaitQuery(), timeout_s=1)
        assert set(report.waits) == {PeerWait("moon", "full moon", 1, 7.0), PeerWait("echo/0", "Say", 1, 7.0)}
        assert (report.name, report.incarnation) == ("relay/0", other.incarnation)
        assert (report.mailbox_waiting, report.oldest_waiting_s) == (1, 7.0), "the third has no credit to come"
        handler, watch = report.tasks
        assert (handler.label, handler.message, handler.count, handler.for_s) == ("relay/0:mailbox", "Say", 1, 7.0)
        assert " in further: return await self.context.ask(self.to, message, timeout_s=100)" in "".join(handler.stack)
        assert (watch.label, watch.message, watch.for_s) == ("relay/0:watch", "", None)
        assert " in watch: " in watch.stack[-1], "the task that only sleeps is no news"
        asker: WaitReport = await host.context.ask(host.context.name, WaitQuery(), timeout_s=1)
        assert asker.waits[0] == PeerWait("relay/0", "Say", 3, 7.0, no_credit=True)
        echo.gate.set()
        await asyncio.gather(*asks)
        report = await host.context.ask("relay", WaitQuery(), timeout_s=1)
        assert [wait.peer for wait in report.waits] == ["moon"]
        assert [task.label for task in report.tasks] == ["relay/0:watch"]
        await other.stop()
        await host.stop()

    run_virtual(main())


def test_tasks_at_the_same_place_are_one_line_and_open_work_has_an_age(samples: SimpleNamespace) -> None:
    async def main() -> None:
        runtime = Runtime(LoopbackNetwork(), encode_local=True)
        await runtime.start()
        relay = relay_class(samples)(to="nobody")
        relay.mailbox = MailboxBound(capacity=5000)
        await runtime.add(relay, "relay/0")
        asks = []
        for _ in range(2000):
            asks.append(asyncio.ensure_future(runtime.context.ask("relay", samples.Nap(50), timeout_s=100)))
        await runtime.clock.sleep(20)
        report: WaitReport = await runtime.context.ask("relay", WaitQuery(), timeout_s=1)
        assert report.working == {"nap": 20.0}
        assert [(task.message, task.count, task.for_s) for task in report.tasks if task.message] == [
            ("Nap", 2000, 20.0)
        ]
        await asyncio.gather(*asks)
        await runtime.stop()

    run_virtual(main())
