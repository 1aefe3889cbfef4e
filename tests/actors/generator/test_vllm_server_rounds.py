"""weights=nccl into a foreign vLLM server, all of ours being real: the parameter server's rounds, the learner's rank 0,
the generator actor and its engine. The server is scripted; its workers receive what rank 0 broadcasts, over a twin of
NCCL, in the order of vLLM's own back-end, and go wrong in each phase."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("aiohttp")

from aiohttp import web
from scripted_vllm_workers import SETTINGS_WITH_GPUS, ScriptedVllmWorkers

from headrace.actors.generator.actor import Generator
from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.torch_engine import TorchEngine
from headrace.actors.generator.vllm_server_engine import VllmServerEngine
from headrace.actors.learner.weight_group import WeightGroupRoot
from headrace.actors.messages import Generate, PublishWeights, VersionServed, WeightsRefused, WeightsReleased
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.actors.session import Sampling
from headrace.transport import Runtime, handles
from headrace.transport.errors import ActorFailed
from headrace.transport.weights import SenderSettings, make_sender
from headrace.transport.weights.collective import communicator
from headrace.transport.weights.layout import model_tensors

LONG_S = 30.0
INIT, SHUTDOWN = "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"
START, UPDATE, FINISH = "/start_weight_update", "/update_weights", "/finish_weight_update"


class Root(WeightGroupRoot):
    """The learner's half of the weights: rank 0, and what it hears of its versions."""

    def __init__(self, backend: str) -> None:
        self._weights_transport = "nccl"
        self.sender: Any = make_sender(
            "nccl", SenderSettings(run_id="rounds", num_buffers=2, bucket_bytes=4096, communicator=backend)
        )
        self._sender = self.sender
        self.news: asyncio.Queue[int | str] = asyncio.Queue()

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> None:
        self.news.put_nowait(message.version)

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> None:
        self.news.put_nowait(message.reason)

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> None:
        self.sender.release(message.version)


class Standstill:
    """Where a worker's thread stands until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.over = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def stand(self) -> None:
        """In that thread."""
        self._loop.call_soon_threadsafe(self.reached.set)
        self.over.wait(LONG_S)


class World:
    def __init__(self, models: Any, model_path: str, backend: str, timeouts: dict[str, float]) -> None:
        self.models, self.model_path = models, model_path
        self.server = ScriptedVllmWorkers()
        self.runtime = Runtime(encode_local=True)
        self.root = Root(backend)
        self.timeouts = timeouts
        self.version = 0
        self.engines: list[VllmServerEngine] = []

    async def add_server(self, name: str = "generator/0", **settings: Any) -> VllmServerEngine:
        options = {"watch_period_s": 60.0, "start_timeout_s": 5.0, "update_timeout_s": 10.0, **settings}
        engine = VllmServerEngine(
            url=self.server.url, model_path=self.model_path, dtype="float32", transport="nccl", **options
        )
        self.engines.append(engine)
        await self.runtime.add(Generator(engine=engine, metrics_period_s=0), name)
        return engine

    async def publish(self, model: str = "second") -> int | str:
        """What the learner hears of it: the version, served by all, or why none of those who live took it."""
        await self.begin(model)
        return await self.hears()

    async def begin(self, model: str = "second") -> None:
        self.version += 1
        staged = self.root.sender.stage(model_tensors(self.models[model]), version=self.version, step=self.version)
        await self.runtime.context.ask("parameter_server/0", PublishWeights(staged.seal()), timeout_s=LONG_S)

    async def hears(self) -> int | str:
        return await asyncio.wait_for(self.root.news.get(), LONG_S)

    def assert_workers_hold(self, model: str) -> None:
        sent = model_tensors(self.models[model])
        for weights in self.server.weights:
            assert set(weights) == set(sent)
            for name, tensor in weights.items():
                assert torch.equal(tensor, sent[name]), name

    @staticmethod
    async def versions(engine: Any) -> list[int]:
        request = Generate("s", np.asarray([1, 2], dtype=np.int32), Sampling(max_tokens=3), fresh=True)
        found: list[int] = (await engine.generate(request)).versions.tolist()
        return found

    async def hears_served(self) -> int:
        """Past that an engine which died took it not."""
        while not isinstance(heard := await self.hears(), int):
            pass
        return heard

    async def until_dead(self, engine: Any, match: str) -> None:
        """It dies by name; until then what it says is the version that it had."""
        version = engine.version

        async def asked_on_and_on() -> None:
            while True:
                assert await self.versions(engine) == [version] * 3

        with pytest.raises(EngineDied, match=match):
            await asyncio.wait_for(asked_on_and_on(), LONG_S)

    def routes(self, *wanted: str) -> list[str]:
        return [route for route in self.server.routes if route in wanted]


@pytest.fixture
def play(models: Any, model_path: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setitem(communicator.BACKENDS, "cupy", "nccl_twin")

    def run(script: Callable[[World], Awaitable[None]], *, backend: str = "cupy", **timeouts: float) -> None:
        async def scene() -> None:
            world = World(models, model_path, backend, timeouts)
            await world.server.start()
            await world.runtime.start()
            options = {
                "gather_timeout_s": 5.0,
                "join_timeout_s": 10.0,
                "stage_timeout_s": 10.0,
                "linger_s": 0.1,
                **timeouts,
            }
            server = ParameterServer(dispatcher="dispatcher/0", **{**options, **timeouts})  # type: ignore[arg-type]
            await world.runtime.add(world.root, "learner/0")
            await world.runtime.add(server, "parameter_server/0")
            try:
                await script(world)
            finally:
                await world.runtime.stop()
                for engine in world.engines:
                    await engine.close()
                await world.server.stop()
                world.root.sender.close()

        asyncio.run(asyncio.wait_for(scene(), 90))

    return run


def test_versions_arrive_in_one_group_and_every_token_says_which(play: Any) -> None:
    async def script(world: World) -> None:
        engine = await world.add_server()
        for version, model in ((1, "second"), (2, "first"), (3, "second")):
            assert await world.publish(model) == version
            world.assert_workers_hold(model)
            assert await world.versions(engine) == [version] * 3
        assert world.routes(INIT) == [INIT], "the group stays"
        updates = world.routes("/pause", START, UPDATE, FINISH, "/resume")
        assert updates[-5:] == ["/pause", START, UPDATE, FINISH, "/resume"]
        [info] = [body["init_info"] for route, body in world.server.calls if route == INIT]
        assert (info["rank_offset"], info["world_size"]) == (1, 3)

    play(script)


def test_others_share_a_group_beside_it(play: Any) -> None:
    """One round: first those that have our code, in a group of theirs, then each server in one of its own."""

    async def script(world: World) -> None:
        engine = await world.add_server()
        other = TorchEngine(model_path=world.model_path, dtype="float32")
        await world.runtime.add(Generator(engine=other, metrics_period_s=0), "generator/1")
        for version in (1, 2):
            assert await world.publish() == version
            world.assert_workers_hold("second")
            assert await world.versions(engine) == await world.versions(other) == [version] * 3
        assert world.routes(INIT) == [INIT]

    play(script)


def test_a_server_that_joins_no_group_serves_its_old_version(play: Any) -> None:
    async def script(world: World) -> None:
        def refuse(body: Any) -> None:
            raise web.HTTPInternalServerError(text="NCCL error: unhandled system error")

        engine = await world.add_server()
        world.server.before[INIT] = refuse
        reason = await world.publish()
        assert "joined no group" in str(reason)
        assert "unhandled system error" in str(reason)
        assert await world.versions(engine) == [0, 0, 0]
        del world.server.before[INIT]
        assert await world.publish() == 2
        world.assert_workers_hold("second")
        assert world.routes(SHUTDOWN, INIT) == [SHUTDOWN, INIT, SHUTDOWN, INIT]

    play(script)


def test_workers_that_never_come_end_the_engine_at_the_deadline(play: Any) -> None:
    """Whichever side's deadline is over first."""

    async def script(world: World) -> None:
        engine = await world.add_server(update_timeout_s=1.0)
        world.server.before[INIT] = world.server.hang
        await world.begin()
        await world.until_dead(engine, "did not (join|come out of) group .* gave no answer within 1 s")
        del world.server.before[INIT]
        world.server.restart()
        successor = await world.add_server("generator/1")
        assert await world.hears_served() == 1, "the newest version comes first"
        world.assert_workers_hold("second")
        assert await world.versions(successor) == [1, 1, 1]

    play(script, join_timeout_s=1.0)


def test_where_rank_0_breaks_off_the_join_workers_that_hang_in_it_are_found_out(play: Any) -> None:
    async def script(world: World) -> None:
        reached = asyncio.Event()

        async def hang(body: Any) -> None:
            reached.set()
            await world.server.hang()

        engine = await world.add_server(update_timeout_s=1.0)
        world.server.before[INIT] = hang
        await world.begin()
        await reached.wait()
        [group] = world.root.sender._joining
        world.root.sender.abort(group)
        await world.until_dead(engine, "did not (join|come out of) group .* gave no answer within 1 s")

    play(script)


def test_workers_that_fail_in_the_middle_end_the_engine_and_a_successor_mends_the_model(play: Any) -> None:
    async def script(world: World) -> None:
        def fail() -> None:
            raise RuntimeError("CUDA error: an illegal memory access")

        engine = await world.add_server()
        assert await world.publish("first") == 1
        world.server.at_tensor = {(0, 3): fail, (1, 3): fail}
        await world.begin("second")
        await world.until_dead(engine, "while version 2 was loaded: .* illegal memory access")
        assert world.server.paused, "nothing is served from a model in pieces"
        assert world.server.mixed
        world.server.at_tensor.clear()
        successor = await world.add_server("generator/1")
        assert await world.hears_served() == 2
        world.assert_workers_hold("second")
        assert await world.versions(successor) == [2, 2, 2]

    play(script)


def test_a_server_that_dies_in_the_middle(play: Any) -> None:
    async def script(world: World) -> None:
        stop = Standstill()
        engine = await world.add_server()
        world.server.at_tensor[0, 2] = stop.stand
        await world.begin()
        await stop.reached.wait()
        stopping = asyncio.ensure_future(world.server.stop())
        try:
            await world.until_dead(engine, "failed while version 1 was loaded")
        finally:
            stop.over.set()
            await stopping

    play(script)


def test_a_worker_that_is_slow_past_the_deadline(play: Any) -> None:
    async def script(world: World) -> None:
        stop = Standstill()
        engine = await world.add_server()
        world.server.at_tensor[0, 2] = stop.stand
        try:
            await world.begin()
            await world.until_dead(engine, r"version 1 had not arrived after 1\.01 s|while version 1 was loaded")
        finally:
            stop.over.set()

    play(script, stage_timeout_s=1.0)


def test_where_rank_0_breaks_off_the_engine_does_not_wait_for_the_deadline(play: Any) -> None:
    """Workers in NCCL would hang for ever; here they hang until the test is over."""

    async def script(world: World) -> None:
        stop = Standstill()
        engine = await world.add_server(update_timeout_s=600.0)
        world.server.at_tensor[0, 1] = stop.stand
        await world.begin()
        await stop.reached.wait()
        [group] = world.root.sender._joining
        world.root.sender.abort(group)
        try:
            await world.until_dead(engine, "was aborted")
        finally:
            stop.over.set()

    play(script, stage_timeout_s=600.0)


@pytest.mark.parametrize("route", [None, "/pause", START, UPDATE, FINISH])
def test_a_server_that_is_restarted_in_between_has_no_version(play: Any, route: str | None) -> None:
    async def script(world: World) -> None:
        def restart(body: Any) -> None:
            del world.server.before[route]  # type: ignore[arg-type]
            world.server.restart()
            world.server.paused = True  # the assertion in the peer is of no interest here

        engine = await world.add_server()
        assert await world.publish("first") == 1
        if route is None:
            world.server.restart()
        else:
            world.server.before[route] = restart
        await world.begin()
        await world.until_dead(engine, "was restarted|was aborted|without a matching|must be called|not initialized")
        assert world.server.label == "default"
        successor = await world.add_server("generator/1")
        assert await world.hears_served() == 2
        assert await world.versions(successor) == [2, 2, 2]

    play(script)


def test_an_update_that_a_killed_engine_left_open_is_ended_first(play: Any) -> None:
    async def script(world: World) -> None:
        world.server.paused = world.server.active = world.server.mixed = True
        engine = await world.add_server()
        assert await world.versions(engine) == [0, 0, 0]
        assert await world.publish() == 1
        world.assert_workers_hold("second")

    play(script)


def test_a_learner_without_nccl_says_so(play: Any) -> None:
    async def script(world: World) -> None:
        engine = await world.add_server()
        reason = str(await world.publish())
        assert "takes weights by NCCL, and the learner has 'memory'" in reason
        assert "weights=checkpoint" in reason
        assert await world.versions(engine) == [0, 0, 0]
        assert world.routes(INIT) == []

    play(script, backend="memory")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_transfer_config": None}, "it has no weight transfer; --weight-transfer-config"),
        ({"weight_transfer_config": {"backend": "ipc"}}, "its weight transfer is ipc; --weight-transfer-config"),
        ({"device_config": {"device": "cpu"}}, "it runs on a CPU, and NCCL needs GPUs at both ends"),
    ],
)
def test_a_server_that_cannot_is_refused_at_its_start(play: Any, changed: dict[str, Any], message: str) -> None:
    async def script(world: World) -> None:
        world.server.settings = {**SETTINGS_WITH_GPUS, **changed}
        with pytest.raises(ActorFailed, match=message) as caught:
            await world.add_server()
        assert """--weight-transfer-config '{"backend": "nccl"}'""" in str(caught.value).partition("Start it as: ")[2]
        assert world.server.folder == "its own"

    play(script)
