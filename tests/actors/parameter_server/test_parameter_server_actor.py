"""The parameter server with real generator actors on scripted engines, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from headrace.actors.generator.actor import Generator
from headrace.actors.generator.scripted_engine import ScriptedEngine, ScriptedTurn
from headrace.actors.messages import (
    Accepted,
    Generate,
    Metrics,
    PublishWeights,
    SyncEvaluators,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
)
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.actors.session import Sampling
from headrace.transport import Actor, Refused, RemoteError, Runtime, handles, run_virtual
from headrace.transport.weights import Manifest, WeightsMismatch


def manifest(version: int, nbytes: int = 0) -> Manifest:
    return Manifest(version, 10 * version, "shm", "", nbytes, (), (), {})


class Listener(Actor):
    """A dispatcher, a learner or a monitor that writes down what it is told."""

    def __init__(self) -> None:
        self.served: list[tuple[int, int]] = []
        self.released: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.failures: list[float] = []
        self.deaf = 0
        """how many messages it does not hear"""

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> None:
        self._hear()
        self.served.append((message.version, message.step))

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> None:
        self._hear()
        self.released.append(message.version)

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> None:
        self.refused.append((message.version, message.reason))

    def _hear(self) -> None:
        if self.deaf:
            self.deaf -= 1
            raise Refused("not heard")

    @handles(Metrics)
    async def metrics(self, message: Metrics) -> None:
        if message.stream == "weights" and "failed" in message.values:
            self.failures.append(message.step)


class World:
    """The parameter server, who hears of it, and generators that join."""

    def __init__(self) -> None:
        self.runtime = Runtime(encode_local=True)
        self.dispatcher, self.learner, self.monitor = Listener(), Listener(), Listener()

    async def start(self, **options: Any) -> None:
        await self.runtime.start()
        for name, actor in (
            ("monitor/0", self.monitor),
            ("dispatcher/0", self.dispatcher),
            ("learner/0", self.learner),
            ("parameter_server/0", ParameterServer(**options)),
        ):
            await self.runtime.add(actor, name)

    async def add(self, name: str, **options: Any) -> ScriptedEngine:
        engine = ScriptedEngine(script=[ScriptedTurn((1, 2, 3))], **options)
        await self.runtime.add(Generator(engine=engine, metrics_period_s=0), name)
        await asyncio.sleep(0.1)
        return engine

    async def publish(self, version: int, settle_s: float = 1.0, nbytes: int = 0) -> None:
        message = PublishWeights(manifest(version, nbytes))
        reply = await self.runtime.context.ask("parameter_server/0", message, timeout_s=10)
        assert reply == Accepted()
        await asyncio.sleep(settle_s)

    async def sync(self) -> VersionServed:
        reply: VersionServed = await self.runtime.context.ask("parameter_server/0", SyncEvaluators(), timeout_s=600)
        return reply

    async def generate(self, name: str) -> list[int]:
        request = Generate("s", np.asarray([1], dtype=np.int32), Sampling(max_tokens=8))
        completion = await self.runtime.context.ask(name, request, timeout_s=60)
        return [int(version) for version in completion.versions]


def play(body: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        world = World()
        await world.start(**options)
        try:
            await body(world)
        finally:
            await world.runtime.stop()

    run_virtual(main())


def test_a_version_reaches_all_generators_then_its_forerunner_is_released() -> None:
    async def body(world: World) -> None:
        engines = [await world.add(f"generator/{i}") for i in range(3)]
        await world.publish(1)
        await world.publish(2)
        assert [engine.commits for engine in engines] == [[1, 2]] * 3
        assert world.dispatcher.served == world.learner.served == [(1, 10), (2, 20)]
        assert world.learner.released == [1]

    play(body)


def test_news_that_was_not_heard_is_said_again_in_order() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        world.dispatcher.deaf, world.learner.deaf = 2, 3
        for version in (1, 2, 3):
            await world.publish(version, settle_s=0.3)
        assert world.dispatcher.served != [(1, 10), (2, 20), (3, 30)]
        await asyncio.sleep(5)
        assert world.dispatcher.served == world.learner.served == [(1, 10), (2, 20), (3, 30)]
        assert world.learner.released == [1, 2]

    play(body)


def test_a_dispatcher_that_comes_up_anew_hears_which_version_is_served() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        await world.publish(1)
        await world.publish(2)
        served = world.dispatcher.served
        assert served == [(1, 10), (2, 20)]
        await world.runtime._remove(world.runtime._cells["dispatcher/0"], "killed")
        successor = type(world.dispatcher)()
        await world.runtime.add(successor, "dispatcher/0")
        await asyncio.sleep(1)
        assert successor.served == [(2, 20)]

    play(body)


def test_before_the_first_version_generators_serve_what_they_have() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        assert await world.generate("generator/0") == [0, 0, 0]
        assert world.dispatcher.served == []

    play(body)


def test_a_late_joiner_gets_the_newest_version_before_its_first_request() -> None:
    async def body(world: World) -> None:
        await world.publish(1)
        await world.publish(2)
        assert world.dispatcher.served == []
        engine = await world.add("generator/0", stage_s=20.0)
        assert await world.generate("generator/0") == [2, 2, 2]
        assert engine.commits == [2]
        await asyncio.sleep(1)
        assert world.dispatcher.served == [(2, 20)]

    play(body)


def test_a_generator_that_misses_its_deadline_is_evicted_and_rejoins() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        slow = await world.add("generator/1")
        slow._stage_s = 50.0
        await world.publish(1, settle_s=11)
        assert world.dispatcher.served == [(1, 10)]
        assert world.monitor.failures == [1]
        slow._stage_s = 0.0
        await world.publish(2, settle_s=50)
        await world.publish(3)
        assert slow.commits[-1] == 3
        assert world.dispatcher.served[-1] == (3, 30)

    play(body, stage_timeout_s=10.0)


def test_the_deadline_for_staging_grows_with_the_bytes() -> None:
    """A version that a slow link takes minutes for is not late: 1.5 GB at 10 MB/s are 150 s beside the fixed 10."""

    async def body(world: World) -> None:
        slow = await world.add("generator/0")
        slow._stage_s = 100.0
        await world.publish(1, settle_s=101, nbytes=1_500_000_000)
        assert world.dispatcher.served == [(1, 10)]
        slow._stage_s = 170.0
        await world.publish(2, settle_s=159, nbytes=1_500_000_000)
        assert world.monitor.failures == []
        await asyncio.sleep(2)
        assert world.monitor.failures == [2]

    play(body, stage_timeout_s=10.0, min_mb_per_s=10.0)


def test_a_generator_that_refuses_serves_its_old_version_on() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        bad = await world.add("generator/1")
        await world.publish(1)
        bad.fail_next_stage = WeightsMismatch("bucket 0 differs")
        await world.publish(2)
        assert await world.generate("generator/1") == [1, 1, 1]
        assert await world.generate("generator/0") == [2, 2, 2]
        assert world.dispatcher.served == [(1, 10), (2, 20)]
        await world.publish(3)
        assert await world.generate("generator/1") == [3, 3, 3]

    play(body)


def test_the_learner_hears_of_a_version_that_no_generator_can_take() -> None:
    async def body(world: World) -> None:
        engines = [await world.add(f"generator/{i}") for i in range(2)]
        await world.publish(1)
        engines[0].fail_next_stage = WeightsMismatch("the segment is gone")
        await world.publish(2)
        assert world.learner.refused == [], "the other one took it"
        for engine in engines:
            engine.fail_next_stage = WeightsMismatch("the segment is gone")
        await world.publish(3)
        [(version, reason)] = world.learner.refused
        assert version == 3
        assert "generator/" in reason
        assert "the segment is gone" in reason
        await world.publish(4)
        assert world.dispatcher.served[-1] == (4, 40)

    play(body)


def test_a_slow_commit_delays_only_itself_and_skips_what_was_superseded() -> None:
    async def body(world: World) -> None:
        fast = await world.add("generator/0")
        slow = await world.add("generator/1", pause_s=8.0)
        for version in range(1, 6):
            await world.publish(version, settle_s=2.0)
        await asyncio.sleep(30)
        assert fast.commits == [1, 2, 3, 4, 5]
        assert slow.commits[-1] == 5
        assert len(slow.commits) < 5
        assert world.dispatcher.served[-1] == (5, 50)
        assert sorted(world.learner.released) == [1, 2, 3, 4]

    play(body)


def test_evaluators_hold_one_version_while_training_goes_on() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        evaluator = await world.add("evaluator/0", pause_s=1.0)
        await world.publish(1)
        assert evaluator.commits == []
        assert await world.sync() == VersionServed(1, 10)
        await world.publish(2)
        assert await world.generate("evaluator/0") == [1, 1, 1]
        assert await world.sync() == VersionServed(2, 20)
        assert evaluator.commits == [1, 2]

    play(body)


def test_sync_without_evaluators_and_with_one_that_fails() -> None:
    async def body(world: World) -> None:
        assert await world.sync() == VersionServed(0, 0)
        await world.publish(1)
        assert await world.sync() == VersionServed(1, 10)
        evaluator = await world.add("evaluator/0")
        await world.publish(2)
        evaluator.fail_next_stage = WeightsMismatch("bad")
        with pytest.raises(RemoteError, match=r"version 2 was not taken by evaluator/0"):
            await world.sync()
        assert await world.sync() == VersionServed(2, 20)

    play(body)


def test_a_reused_version_is_refused() -> None:
    async def body(world: World) -> None:
        await world.publish(2)
        with pytest.raises(RemoteError, match="not above 2"):
            await world.publish(1)

    play(body)


def test_settings_are_checked_at_construction() -> None:
    with pytest.raises(ValueError, match="stage_timeout_s must be > 0, got 0"):
        ParameterServer(stage_timeout_s=0)
    with pytest.raises(ValueError, match=r"parameter_server\.min_mb_per_s must be >= 0\.001, got nan"):
        ParameterServer(min_mb_per_s=float("nan"))
    with pytest.raises(ValueError, match=r"min_mb_per_s must be >= 0\.001, got 1e-300"):
        ParameterServer(min_mb_per_s=1e-300)
    with pytest.raises(ValueError, match="two roles, got 'generator' twice"):
        ParameterServer(evaluators="generator")
