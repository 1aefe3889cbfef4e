"""One runtime in virtual time: handlers, bounds on concurrency, groups, failures, stopping, the time accounting."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.transport import (
    ActivityQuery,
    Actor,
    ActorFailed,
    Context,
    DeadlineExceeded,
    InvalidField,
    LoopbackNetwork,
    PeerDown,
    PeerLost,
    PeerUp,
    RemoteError,
    Runtime,
    RuntimeStopped,
    TransportError,
    UnknownActor,
    handles,
    run_virtual,
)
from headrace.transport.clock import LoopClock


async def started(**options: Any) -> Runtime:
    runtime = Runtime(LoopbackNetwork(), **options)
    await runtime.start()
    return runtime


def test_a_concurrent_handler_is_bounded_and_does_not_hold_up_the_others(samples: SimpleNamespace) -> None:
    async def main() -> None:
        runtime = await started()
        echo = samples.Echo()
        await runtime.add(echo, "echo/0")
        ask = runtime.context.ask
        naps = [asyncio.ensure_future(ask("echo", samples.Nap(10), timeout_s=100)) for _ in range(5)]
        await runtime.clock.sleep(1)
        assert echo.napping == 2
        assert await ask("echo", samples.Say("meanwhile"), timeout_s=1) == samples.Say("meanwhile")
        await asyncio.gather(*naps)
        assert runtime.clock.time() == 30
        assert echo.peak_napping == 2

    run_virtual(main())


def test_a_cancelled_ask_that_still_waits_is_never_handled(samples: SimpleNamespace) -> None:
    async def main() -> None:
        runtime = await started()
        echo = samples.Echo()
        await runtime.add(echo, "echo/0")
        gate = asyncio.ensure_future(runtime.context.ask("echo", samples.Say("gate"), timeout_s=100))
        await samples.until(lambda: echo.heard)
        with pytest.raises(DeadlineExceeded):
            await runtime.context.ask("echo", samples.Say("too late"), timeout_s=1)
        echo.gate.set()
        await gate
        await runtime.clock.sleep(0.001)  # after a long wait the mailbox lets the loop turn first
        snapshot = await runtime.context.ask("echo", ActivityQuery(), timeout_s=1)
        assert echo.heard == [samples.Say("gate")]
        assert snapshot.mailbox["cancelled"] == 1

    run_virtual(main())


def test_asking_oneself_ends_by_the_deadline(samples: SimpleNamespace) -> None:
    class Narcissus(Actor):
        @handles(samples.Say)
        async def say(self, message: Any) -> Any:
            return await self.context.ask(self.context.name, message, timeout_s=5)

    async def main() -> None:
        runtime = await started()
        await runtime.add(Narcissus(), "narcissus/0")
        with pytest.raises(RemoteError) as error:
            await runtime.context.ask("narcissus", samples.Say("me"), timeout_s=60)
        assert error.value.error_type == "DeadlineExceeded"
        assert runtime.clock.time() == 5

    run_virtual(main())


@pytest.mark.filterwarnings("error")
def test_a_task_that_is_cancelled_before_its_first_step_is_no_warning() -> None:
    async def never() -> None:
        raise AssertionError("it must not begin")

    async def main() -> None:
        runtime = await started()
        task = runtime.context.spawn(never(), "never")
        task.cancel()
        await asyncio.wait({task})
        del task
        gc.collect()
        await runtime.stop()

    run_virtual(main())


@pytest.mark.parametrize("where", ["on_start", "task"])
def test_an_exception_outside_of_a_handler_fails_the_process(where: str) -> None:
    """cases G107: NousResearch/hermes-agent#12001; gc during awaits changes nothing."""

    class Fragile(Actor):
        async def on_start(self, context: Context) -> None:
            if where == "on_start":
                raise KeyError("the cause")
            context.spawn(self.work(), "work")

        async def work(self) -> None:
            await self.context.clock.sleep(3)
            gc.collect()
            await self.context.clock.sleep(3)
            raise KeyError("the cause")

    async def main() -> None:
        runtime = await started()
        watcher_news: list[object] = []

        class Watcher(Actor):
            async def on_start(self, context: Context) -> None:
                context.watch("fragile")

            @handles(PeerUp)
            @handles(PeerDown)
            async def news(self, message: object) -> None:
                watcher_news.append(message)

        await runtime.add(Watcher(), "watcher/0")
        if where == "on_start":
            with pytest.raises(ActorFailed, match=r"fragile/0 failed: KeyError: 'the cause'\n(.|\n)*in on_start"):
                await runtime.add(Fragile(), "fragile/0")
        else:
            await runtime.add(Fragile(), "fragile/0")
        with pytest.raises(ActorFailed, match="Traceback"):
            await runtime.failed
        await runtime.clock.sleep(1)
        if where == "task":
            assert isinstance(watcher_news[-1], PeerDown)
            assert "KeyError" in watcher_news[-1].reason
        with pytest.raises(UnknownActor):
            await runtime.context.ask("fragile", ActivityQuery(), timeout_s=1)

    run_virtual(main())


def test_a_handler_that_exits_fails_its_asker_and_the_actor(samples: SimpleNamespace) -> None:
    class Exits(Actor):
        @handles(samples.Say, concurrent=True)
        async def say(self, message: Any) -> None:
            raise asyncio.CancelledError if message.text == "cancel" else RuntimeError("x" * 100_000)

    async def main() -> None:
        runtime = await started()
        await runtime.add(Exits(), "exits/0")
        with pytest.raises(TransportError):
            await runtime.context.ask("exits", samples.Say("cancel"), timeout_s=1)
        with pytest.raises(RemoteError) as error:
            await runtime.context.ask("exits", samples.Say("huge"), timeout_s=1)
        assert len(str(error.value)) < 25_000

    run_virtual(main())


def test_groups_route_by_load_turn_and_key(samples: SimpleNamespace) -> None:
    async def main() -> None:
        runtime = await started()
        group = runtime.context.group("echo")
        waiting = asyncio.ensure_future(group.ask(samples.Say("first"), timeout_s=10))
        await runtime.clock.sleep(1)
        actors = [samples.Echo() for _ in range(3)]
        for index, actor in enumerate(actors):
            await runtime.add(actor, f"echo/{index}")
        assert await waiting == samples.Say("first")
        assert await group.wait_for(3, timeout_s=1) == ["echo/0", "echo/1", "echo/2"]
        naps = [asyncio.ensure_future(group.ask(samples.Nap(10), timeout_s=60)) for _ in range(6)]
        await runtime.clock.sleep(1)
        assert [actor.napping for actor in actors] == [2, 2, 2]
        await asyncio.gather(*naps)
        homes = {key: group.pick(key) for key in map(str, range(60))}
        assert set(homes.values()) == {"echo/0", "echo/1", "echo/2"}
        replies = await group.ask_all(samples.Say("boom"), timeout_s=1)
        assert all(isinstance(reply, RemoteError) for reply in replies.values())
        await runtime._remove(runtime._cells["echo/1"], "left")
        assert {k: group.pick(k) for k, home in homes.items() if home != "echo/1"} == {
            k: home for k, home in homes.items() if home != "echo/1"
        }
        with pytest.raises(UnknownActor, match="did not reach 5 members"):
            await group.wait_for(5, timeout_s=1)

    run_virtual(main())


def test_time_is_busy_blocked_or_idle(samples: SimpleNamespace) -> None:
    class Worker(Actor):
        async def on_start(self, context: Context) -> None:
            context.spawn(self.work(), "work")

        async def work(self) -> None:
            await self.context.ask("echo/0", samples.Nap(7), timeout_s=60)
            with self.context.activity.working("train"):
                await self.context.clock.sleep(4)
            await self.context.clock.sleep(9)

    async def main() -> None:
        runtime = await started()
        await runtime.add(samples.Echo(), "echo/0")
        await runtime.add(Worker(), "worker/0")
        await runtime.clock.sleep(25)
        seen = await runtime.context.ask("worker", ActivityQuery(), timeout_s=1)
        assert (seen.wall_s, seen.busy_s, seen.blocked_s, seen.idle_s) == (25, 4, {"echo": 7}, 14)
        assert seen.working_s == {"train": 4}

    run_virtual(main())


def test_stop_runs_in_reverse_and_turns_the_waiting_away(samples: SimpleNamespace) -> None:
    order: list[str] = []

    class Stops(samples.Echo):  # type: ignore[misc,name-defined]
        async def on_stop(self) -> None:
            order.append(self.context.name)
            assert await self.context.ask("echo/0", ActivityQuery(), timeout_s=1)

    async def main() -> None:
        runtime = await started()
        await runtime.add(samples.Echo(), "echo/0")
        for index in (1, 2):
            await runtime.add(Stops(), f"echo/{index}")
        context = runtime.context
        ask = asyncio.ensure_future(context.ask("echo/1", samples.Nap(1000), timeout_s=2000))
        await runtime.clock.sleep(1)
        await runtime.stop(reason="the run is over")
        assert order == ["echo/2", "echo/1"]
        with pytest.raises(PeerLost, match="the run is over"):
            await ask
        with pytest.raises((RuntimeStopped, UnknownActor)):
            await context.ask("echo/1", samples.Say("late"), timeout_s=1)
        await runtime.stop()

    run_virtual(main())


def test_local_messages_pass_the_codec_only_on_request(samples: SimpleNamespace) -> None:
    async def main(encode_local: bool) -> None:
        runtime = await started(encode_local=encode_local)
        await runtime.add(samples.Echo(), "echo/0")
        sent = np.arange(3)
        reply = await runtime.context.ask("echo", samples.Array(sent), timeout_s=1)
        assert (reply.values is sent) is not encode_local
        assert [n.value async for n in runtime.context.stream("echo", samples.Count(100), timeout_s=1)] == list(
            range(100)
        )
        if encode_local:
            with pytest.raises(InvalidField, match=r"Say\.text"):
                await runtime.context.ask("echo", samples.Say(3), timeout_s=1)

    run_virtual(main(False))
    run_virtual(main(True))


def test_silence_is_death_and_the_process_learns_it(samples: SimpleNamespace) -> None:
    """A process whose event loop does not turn sends no heartbeat (messaging fault 10)."""

    async def main() -> None:
        network = LoopbackNetwork(heartbeat_s=1.0)
        host = Runtime(network, silence_s=30)
        await host.start()
        other = Runtime(network, directory=host.address)
        await other.start()
        await other.add(samples.Echo(), "echo/0")
        ask = asyncio.ensure_future(host.context.ask("echo/0", samples.Nap(100_000), timeout_s=100_000))
        await host.clock.sleep(300)
        assert not ask.done()
        silent: list[tuple[str, str]] = []
        host.directory.on_silence = lambda incarnation, reason: silent.append((incarnation, reason))
        beats = [task for task in other._cells[f"runtime/{other.incarnation}"]._tasks if "heartbeat" in task.get_name()]
        beats[0].cancel()
        with pytest.raises(PeerLost, match="no heartbeat for 3"):
            await ask
        with pytest.raises(RuntimeStopped, match="declared this process dead"):
            await other.failed
        with pytest.raises(UnknownActor):
            await host.context.ask("echo/0", samples.Say("hi"), timeout_s=1)
        assert [incarnation for incarnation, _ in silent] == [other.incarnation]

    run_virtual(main())


def test_a_directory_that_stood_still_declares_nobody_dead(samples: SimpleNamespace) -> None:
    """The launcher's process was stopped (Ctrl-Z), or starved: the heartbeats of that time are only unread."""

    class Jumping(LoopClock):
        ahead_s = 0.0

        def time(self) -> float:
            return super().time() + self.ahead_s

    async def main() -> None:
        network, clock = LoopbackNetwork(heartbeat_s=1.0), Jumping()
        host = Runtime(network, clock, silence_s=30)
        await host.start()
        other = Runtime(network, directory=host.address)
        await other.start()
        await other.add(samples.Echo(), "echo/0")
        await asyncio.sleep(10)
        clock.ahead_s = 500.0
        await asyncio.sleep(10)
        assert host.context.group("echo").members() == ["echo/0"]

    run_virtual(main())


def test_mistakes_are_named(samples: SimpleNamespace) -> None:
    async def main() -> None:
        runtime = await started()
        await runtime.add(samples.Echo(), "echo/0")
        with pytest.raises(ValueError, match="already hosts 'echo/0'"):
            await runtime.add(samples.Echo(), "echo")
        with pytest.raises(RuntimeError, match="no context yet"):
            samples.Echo().context  # noqa: B018
        with pytest.raises(RuntimeError, match="started before"):
            await runtime.start()
        with pytest.raises(ValueError, match="concurrent"):
            handles(samples.Say, concurrent=0)
        with pytest.raises(TransportError, match="an address is"):
            await Runtime(LoopbackNetwork(), directory="nowhere").start()

    run_virtual(main())


def test_two_thousand_actors_in_one_process(samples: SimpleNamespace) -> None:
    """messaging fault 31."""

    async def main() -> None:
        runtime = await started()
        for index in range(2_000):
            await runtime.add(samples.Echo(), f"echo/{index}")
        replies = await runtime.context.group("echo").ask_all(samples.Say("hi"), timeout_s=10)
        assert len(replies) == 2_000
        assert all(reply == samples.Say("hi") for reply in replies.values())

    run_virtual(main())
