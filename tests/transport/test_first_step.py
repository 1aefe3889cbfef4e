"""A coroutine whose first step runs at once looks to itself as if the waiting task had run it all."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.transport import Actor, LoopbackNetwork, PeerLost, Runtime, handles, message, run_virtual
from headrace.transport.first_step import FirstStep

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def begin(coroutine: Coroutine[Any, Any, Any]) -> tuple[FirstStep, asyncio.Task[None], asyncio.Event]:
    """The step, run outside of any task on behalf of one that waits for `go`, and then awaits the rest."""
    loop = asyncio.get_running_loop()
    go = asyncio.Event()
    made: asyncio.Future[FirstStep] = loop.create_future()
    context = contextvars.copy_context()

    async def waits() -> None:
        await go.wait()
        step = made.result()
        if not step.finished:
            await step.rest()

    task = loop.create_task(waits(), context=context)
    await asyncio.sleep(0)
    loop.call_soon(lambda: made.set_result(FirstStep(coroutine, task, context)))
    return await made, task, go


def test_what_never_waits_is_finished_at_once() -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(asyncio.current_task())

    async def main() -> None:
        step, task, go = await begin(work())
        assert step.finished
        assert step.error is None
        assert seen == [task]
        go.set()
        await task

    asyncio.run(main())


def test_the_rest_runs_in_the_task_with_the_same_context_and_timeouts() -> None:
    seen: list[object] = []

    async def work() -> None:
        VARIABLE.set("by the first step")
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("timeout")
        await asyncio.sleep(0)
        seen.extend([VARIABLE.get(), asyncio.current_task()])

    async def main() -> None:
        step, task, go = await begin(work())
        assert not step.finished
        go.set()
        await task
        assert seen == ["timeout", "by the first step", task]
        assert VARIABLE.get() == "unset"

    asyncio.run(main())


def test_errors_come_out_where_they_are_raised() -> None:
    async def at_once() -> None:
        raise ValueError("first")

    async def later() -> None:
        await asyncio.sleep(0)
        raise ValueError("later")

    async def main() -> None:
        step, task, go = await begin(at_once())
        assert step.finished
        assert str(step.error) == "first"
        go.set()
        await task
        _, task, go = await begin(later())
        go.set()
        with pytest.raises(ValueError, match="later"):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("awaits", ["a future", "a turn"])
def test_a_task_that_is_cancelled_before_the_rest_hands_it_on(awaits: str) -> None:
    """Also what the first step itself arranged: a timeout that is over before the task comes to the rest."""
    seen: list[str] = []

    async def work() -> None:
        try:
            await (asyncio.sleep(0) if awaits == "a turn" else asyncio.Event().wait())
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[FirstStep] = loop.create_future()

        async def waits() -> None:
            step = await asyncio.shield(made)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                await step.rest(error)

        task = loop.create_task(waits(), context=(context := contextvars.copy_context()))
        await asyncio.sleep(0)
        loop.call_soon(lambda: made.set_result(FirstStep(work(), task, context)))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cancelled"]

    asyncio.run(main())


@message("test.first_step")
@dataclass(frozen=True, slots=True)
class Question:
    seconds: float


class Serial(Actor):
    def __init__(self) -> None:
        self.order: list[str] = []

    @handles(Question)
    async def question(self, message: Question) -> Question:
        self.order.append(f"begin {message.seconds:g}")
        await self.context.clock.sleep(message.seconds)
        self.order.append(f"end {message.seconds:g}")
        return message


def test_an_actor_stays_serial_and_can_be_stopped_in_the_middle() -> None:
    """The first of two messages is begun at its arrival; the second waits for its end; a stop ends both askers."""

    async def main() -> None:
        network = LoopbackNetwork()
        host = Runtime(network)
        await host.start()
        other = Runtime(network, directory=host.address)
        await other.start()
        actor = Serial()
        await other.add(actor, "serial/0")
        await host.clock.sleep(1)
        asks = [asyncio.ensure_future(host.context.ask("serial/0", Question(s), timeout_s=99)) for s in (3.0, 2.0)]
        assert [reply.seconds for reply in await asyncio.gather(*asks)] == [3.0, 2.0]
        assert actor.order == ["begin 3", "end 3", "begin 2", "end 2"]
        last = asyncio.ensure_future(host.context.ask("serial/0", Question(50.0), timeout_s=99))
        await host.clock.sleep(1)
        await other.stop(reason="enough")
        with pytest.raises(PeerLost, match="enough"):
            await last
        await host.stop()

    run_virtual(main())


class Hasty(Serial):
    @handles(Question)
    async def question(self, message: Question) -> Question:
        try:
            async with asyncio.timeout(message.seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            self.order.append("timeout")
        return message


def test_a_timeout_that_is_over_at_once_does_not_end_the_mailbox() -> None:
    async def main() -> None:
        network = LoopbackNetwork()
        host = Runtime(network)
        await host.start()
        other = Runtime(network, directory=host.address)
        await other.start()
        actor = Hasty()
        await other.add(actor, "serial/0")
        for seconds in (0.0, 0.0, 1.0):
            await host.clock.sleep(1)
            assert await host.context.ask("serial/0", Question(seconds), timeout_s=9) == Question(seconds)
        assert actor.order == ["timeout"] * 3
        await other.stop()
        await host.stop()

    run_virtual(main())
