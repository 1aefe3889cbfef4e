"""The parameter server with real generator actors on scripted engines and a scripted learner, in virtual time: what a
broadcast of a version costs in deadlines, and who goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.actors.generator.actor import Generator
from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.scripted_engine import ScriptedEngine
from headrace.actors.messages import (
    AbortGroup,
    GroupAborted,
    GroupJoined,
    GroupOpened,
    JoinGroup,
    OpenGroup,
    PublishWeights,
    SendWeights,
    SyncEvaluators,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
    WeightsSent,
)
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.transport import Actor, Runtime, handles, run_virtual
from headrace.transport.weights import Manifest, WeightsMismatch
from headrace.transport.weights.collective import HEADRACE, VLLM
from headrace.transport.weights.collective.communicator import GroupBroken


def manifest(version: int) -> Manifest:
    return Manifest(version, 10 * version, "nccl", "staged", 0, (), (), {})


class ScriptedLearner(Actor):
    """Answers as rank 0 does. `send_s`: how long a broadcast takes; `fail_sends`: how many of them break."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, int, tuple[str, ...]]] = []
        self.kinds: list[str] = []
        self.sent: list[tuple[str, int]] = []
        self.aborted: list[str] = []
        self.served: list[int] = []
        self.released: list[int] = []
        self.refused: list[str] = []
        self.send_s, self.fail_sends, self.progress = 0.5, 0, 2
        self.holds = True

    @handles(OpenGroup)
    async def open_group(self, message: OpenGroup) -> GroupOpened:
        self.opened.append((message.group, message.world_size, message.keep))
        self.kinds.append(message.kind)
        return GroupOpened("memory", b"id")

    @handles(JoinGroup)
    async def join_group(self, message: JoinGroup) -> GroupJoined:
        assert message.first_rank == 0
        return GroupJoined(message.group)

    @handles(SendWeights, concurrent=True)
    async def send(self, message: SendWeights) -> WeightsSent:
        if not self.holds:
            raise WeightsMismatch(f"version {message.version} is not staged")
        await self.context.clock.sleep(self.send_s)
        if self.fail_sends:
            self.fail_sends -= 1
            raise GroupBroken("NCCL")
        self.sent.append((message.group, message.version))
        return WeightsSent(message.version, self.send_s)

    @handles(AbortGroup, concurrent=True)
    async def abort(self, message: AbortGroup) -> GroupAborted:
        self.aborted.append(message.group)
        return GroupAborted(self.progress)

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> None:
        self.served.append(message.version)

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> None:
        self.released.append(message.version)

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> None:
        self.refused.append(message.reason)


class World:
    def __init__(self) -> None:
        self.runtime = Runtime(encode_local=True)
        self.learner = ScriptedLearner()

    async def add(self, name: str, **options: Any) -> ScriptedEngine:
        engine = ScriptedEngine(**options)
        await self.runtime.add(Generator(engine=engine, metrics_period_s=0), name)
        await asyncio.sleep(0.1)
        return engine

    async def publish(self, version: int, settle_s: float = 2.0) -> None:
        await self.runtime.context.ask("parameter_server/0", PublishWeights(manifest(version)), timeout_s=10)
        await asyncio.sleep(settle_s)


def play(body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await world.runtime.start()
        await world.runtime.add(world.learner, "learner/0")
        server = ParameterServer(
            dispatcher="learner/0", stage_timeout_s=10, commit_timeout_s=10, gather_timeout_s=2, join_timeout_s=10
        )
        await world.runtime.add(server, "parameter_server/0")
        try:
            await body(world)
        finally:
            await world.runtime.stop()

    run_virtual(main())


def test_one_broadcast_for_all_in_a_group_that_stays() -> None:
    async def body(world: World) -> None:
        engines = [await world.add(f"generator/{i}", num_ranks=i + 1) for i in range(2)]
        for version in (1, 2, 3):
            await world.publish(version)
        assert [engine.commits for engine in engines] == [[1, 2, 3]] * 2
        [(group, world_size, _)] = world.learner.opened
        assert world_size == 1 + 1 + 2
        assert world.learner.sent == [(group, 1), (group, 2), (group, 3)]
        assert engines[0].ranks.joined == [group]
        assert world.learner.released == [1, 2]

    play(body)


def test_a_late_joiner_has_a_round_of_its_own_then_is_in_the_group_of_all() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        await world.publish(1)
        late = await world.add("generator/1")
        await asyncio.sleep(2)
        assert late.commits == [1]
        await world.publish(2)
        assert [size for _, size, _ in world.learner.opened] == [2, 2, 3]

    play(body)


def test_a_hung_engine_costs_the_others_one_gather() -> None:
    async def body(world: World) -> None:
        engine = await world.add("generator/0")
        hung = await world.add("generator/1")
        await world.publish(1)

        async def never() -> int:
            await asyncio.sleep(1e9)
            return 1

        count, hung.ranks.count = hung.ranks.count, never  # type: ignore[method-assign]
        await world.publish(2, settle_s=2.9)  # 2 s for who does not come, 0.5 s for the broadcast
        assert engine.commits == [1, 2]
        assert hung.commits == [1]
        hung.ranks.count = count  # type: ignore[method-assign]
        await world.publish(3)
        assert hung.commits == [1, 3]

    play(body)


def test_a_slow_receiver_is_named_and_rejoins() -> None:
    async def body(world: World) -> None:
        engine = await world.add("generator/0")
        slow = await world.add("generator/1")
        await world.publish(1)
        slow._stage_s, slow.ranks.progress, world.learner.progress = 30.0, 3, 9
        engine.fail_next_stage = GroupBroken("not done at the deadline")
        engine.ranks.progress = 9
        await world.publish(2, settle_s=20)
        assert engine.commits == [1, 2]
        assert slow.commits == [1]
        slow._stage_s = 0.0
        await asyncio.sleep(30)
        await world.publish(3)
        assert slow.commits == [1, 3]

    play(body)


def test_a_refusal_leaves_the_old_version_and_the_others_their_new_one() -> None:
    async def body(world: World) -> None:
        engine = await world.add("generator/0")
        other = await world.add("generator/1")
        await world.publish(1)
        other.fail_next_stage = WeightsMismatch("bad checksums in 1 of 16")
        await world.publish(2)
        assert (engine.commits, other.commits) == ([1, 2], [1])
        await world.publish(3)
        assert other.commits == [1, 3]

    play(body)


def test_a_group_that_breaks_for_no_reason_is_made_anew() -> None:
    async def body(world: World) -> None:
        engine = await world.add("generator/0", stage_s=1.0)
        await world.publish(1)
        world.learner.fail_sends = 1
        engine.fail_next_stage = GroupBroken("NCCL")
        await world.publish(2, settle_s=10)
        assert engine.commits == [1, 2]
        assert len(world.learner.opened) == 2

    play(body)


def test_a_learner_that_holds_the_version_no_more_is_asked_for_another() -> None:
    async def body(world: World) -> None:
        engine = await world.add("generator/0", stage_s=1.0)
        await world.publish(1)
        world.learner.holds = False
        engine.fail_next_stage = GroupBroken("aborted")
        await world.publish(2, settle_s=10)
        [reason] = world.learner.refused
        assert "could not send" in reason
        world.learner.holds = True
        await world.publish(3, settle_s=10)
        assert engine.commits == [1, 3]

    play(body)


def test_evaluators_have_a_group_beside_the_generators() -> None:
    async def body(world: World) -> None:
        await world.add("generator/0")
        evaluator = await world.add("evaluator/0")
        for version in (1, 2):
            await world.publish(version)
            await world.runtime.context.ask("parameter_server/0", SyncEvaluators(), timeout_s=60)
        assert evaluator.commits == [1, 2]
        assert len(world.learner.opened) == 2
        groups = [group for group, _, _ in world.learner.opened]
        assert world.learner.opened[1][2] == (groups[0],), "the other group stays"

    play(body)


def test_an_engine_of_another_kind_has_its_own_group_and_loads_as_it_arrives() -> None:
    async def body(world: World) -> None:
        engine = await world.add("generator/0")
        server = await world.add("generator/1", group_kind=VLLM, num_ranks=4)
        for version in (1, 2):
            await world.publish(version)
        assert engine.commits == server.commits == [1, 2]
        assert world.learner.kinds == [HEADRACE, VLLM], "both groups stay"
        assert [size for _, size, _ in world.learner.opened] == [2, 5]
        mine, its = (group for group, _, _ in world.learner.opened)
        assert world.learner.sent == [(mine, 1), (its, 1), (mine, 2), (its, 2)], "one after the other"
        server.fail_next_stage = EngineDied("its model is incomplete")
        await world.publish(3)
        assert (engine.commits, server.commits) == ([1, 2, 3], [1, 2])

    play(body)
