"""Two hosts on one event loop: the learner's, with the real parameter server, and one of engines with the real
relay; real shared memory and real time, over a loopback network that can lose messages and processes."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.generator.actor import Generator
from headrace.actors.generator.engine import StageTimings
from headrace.actors.generator.scripted_engine import ScriptedEngine, ScriptedTurn
from headrace.actors.messages import FetchBucket, Metrics, PublishWeights, VersionServed, WeightsBucket, WeightsReleased
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.actors.relay.actor import Relay
from headrace.transport import Actor, LoopbackNetwork, Runtime, handles
from headrace.transport.weights import Manifest, SenderSettings, make_sender, open_weights

NUM_BUCKETS = 8
BUCKET_BYTES = 65_536
LEARNER_NODE, ENGINE_NODE = "training", "rollout"
Answer = Callable[[int, FetchBucket, WeightsBucket], Awaitable[WeightsBucket]]


class Source(ParameterServer):
    """The real one, beside a list of what it handed out, and a hook on the way of each bucket."""

    def __init__(self, answer: Answer | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.answer = answer
        self.asked: list[FetchBucket] = []
        self.sent: list[tuple[FetchBucket, WeightsBucket]] = []

    async def fetch_bucket(self, message: FetchBucket) -> WeightsBucket:
        self.asked.append(message)
        number = len(self.asked)
        reply = await super().fetch_bucket(message)
        if self.answer is not None:
            reply = await self.answer(number, message, reply)
        self.sent.append((message, reply))
        return reply

    def num_bytes(self, version: int) -> int:
        return sum(len(reply.data) for ask, reply in self.sent if ask.version == version)

    def kinds(self, version: int) -> Counter[str]:
        return Counter(reply.kind for ask, reply in self.sent if ask.version == version)


class ReadingEngine(ScriptedEngine):
    """Reads and verifies what it is given. `loaded`: version → its bytes, as they were at the commit."""

    def __init__(self, **options: Any) -> None:
        super().__init__(script=[ScriptedTurn((1,))], **options)
        self.locations: list[str] = []
        self.loaded: dict[int, np.ndarray] = {}
        self._near: Any = None

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        self.locations.append(manifest.location)
        near = open_weights(manifest)
        near.verify()
        self._near = near
        return await super().stage_weights(manifest)

    async def commit_weights(self, manifest: Manifest) -> Any:
        timings = await super().commit_weights(manifest)
        self.loaded[manifest.version] = np.concatenate(
            [tensor.reshape(-1).view(torch.uint8).numpy().copy() for _, tensor in self._near.tensors()]
        )
        self._near.check_unchanged()
        return timings


class Listener(Actor):
    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self.served: list[int] = []
        self.relayed: list[dict[str, float]] = []
        self.evictions = 0

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> None:
        self.served.append(message.version)

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> None:
        self._release(message.version)

    @handles(Metrics)
    async def metrics(self, message: Metrics) -> None:
        if "relay" in message.stream:
            self.relayed.append(message.values)
        self.evictions += "failed" in message.values


class World:
    def __init__(self) -> None:
        self.run_id = f"relay-test-{secrets.token_hex(4)}"
        self.network = LoopbackNetwork()
        self.runtimes: dict[str, Runtime] = {}
        self._numbers = itertools.count()
        settings = SenderSettings(run_id=self.run_id, bucket_bytes=BUCKET_BYTES, num_buffers=3, node=LEARNER_NODE)
        self.sender = make_sender("stream", settings)
        self.masters = torch.randn(NUM_BUCKETS * BUCKET_BYTES // 2, generator=torch.Generator().manual_seed(0))
        self.bytes: dict[int, np.ndarray] = {}
        self.newest: Manifest | None = None

    async def start(self, answer: Answer | None = None, **options: Any) -> None:
        host = await self.runtime("host", LEARNER_NODE)
        self.listener = Listener(self.sender.release)
        for name in ("monitor/0", "dispatcher/0", "learner/0"):
            listener = self.listener if name != "dispatcher/0" else Listener(lambda version: None)
            await host.add(listener, name)
        await self.start_source(answer, **options)

    async def runtime(self, name: str, node: str) -> Runtime:
        directory = self.runtimes["host"].address if self.runtimes else None
        incarnation = f"{name}.{next(self._numbers)}"
        runtime = Runtime(self.network, directory=directory, incarnation=incarnation, node=node, encode_local=True)
        await runtime.start()
        self.runtimes[name] = runtime
        return runtime

    async def start_source(self, answer: Answer | None = None, **options: Any) -> Source:
        self.source = Source(answer, **options)
        await (await self.runtime("source", LEARNER_NODE)).add(self.source, "parameter_server/0")
        if self.newest is not None:  # as the learner does when it is back
            await self.announce(self.newest)
        return self.source

    async def start_relay(self, index: int = 0, **options: Any) -> Relay:
        relay = Relay(run_id=self.run_id, **{"delta": True, "bucket_timeout_s": 5.0, **options})
        await (await self.runtime(f"relay{index}", ENGINE_NODE)).add(relay, f"relay/{index}")
        return relay

    async def start_generator(self, index: int = 0, *, node: str = ENGINE_NODE, **options: Any) -> ReadingEngine:
        engine = ReadingEngine(**options)
        runtime = await self.runtime(f"generator{index}", node)
        await runtime.add(Generator(engine=engine, metrics_period_s=0), f"generator/{index}")
        return engine

    async def start_and_serve(self) -> ReadingEngine:
        """Both hosts, a relay, and an engine that serves version 1."""
        await self.start()
        await self.start_relay()
        engine = await self.start_generator()
        await self.publish(1)
        await self.serves(engine, 1)
        return engine

    def kill(self, name: str) -> None:
        """As SIGKILL, noticed at once."""
        runtime = self.runtimes.pop(name)
        self.network.cut(runtime.incarnation)
        self.runtimes["host"].directory.process_down(runtime.incarnation, "killed")

    async def publish(self, version: int, lr: float = 1e-5) -> Manifest:
        noise = torch.randn(len(self.masters), generator=torch.Generator().manual_seed(version))
        self.masters += lr * noise
        weights = self.masters.bfloat16()
        self.bytes[version] = weights.view(torch.uint8).numpy().copy()
        staged = self.sender.stage({"w": weights}, version=version, step=version)
        assert staged is not None, "no buffer is free"
        self.newest = staged.seal()
        await self.announce(self.newest)
        return self.newest

    async def announce(self, manifest: Manifest) -> None:
        await self.runtimes["host"].context.ask("parameter_server/0", PublishWeights(manifest), timeout_s=5)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Let the event loop turn until the condition holds."""
        end_s = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            assert asyncio.get_running_loop().time() < end_s, "the condition did not come true"
            await asyncio.sleep(0.002)

    async def has_loaded(self, engine: ReadingEngine, version: int) -> None:
        await self.until(lambda: version in engine.loaded)

    async def serves(self, engine: ReadingEngine, version: int) -> None:
        """Until it serves that version, whole."""
        await self.has_loaded(engine, version)
        np.testing.assert_array_equal(engine.loaded[version], self.bytes[version])

    def segments(self) -> list[str]:
        """What lies in shared memory for this run."""
        return sorted(path.name for path in Path("/dev/shm").glob(f"headrace-{self.run_id}-*"))

    async def stop(self) -> None:
        for runtime in reversed(self.runtimes.values()):
            await runtime.stop()
        self.sender.close()


Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play() -> Play:
    def run(body: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            world = World()
            try:
                async with asyncio.timeout(60):
                    await body(world)
            finally:
                await world.stop()

        asyncio.run(main())

    return run
