"""Two hosts on one event loop: the learner's end of each transport and the real parameter server on one; the real
generator with vLLM, and a relay where the transport needs one, on the other. The engine starts once and takes versions
by one transport after the other.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.actors.generator.actor import Generator
from headrace.actors.generator.engine import Engine
from headrace.actors.learner.weight_group import WeightGroupRoot
from headrace.actors.messages import (
    Accepted,
    Completion,
    Generate,
    Metrics,
    PublishWeights,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
    WithdrawWeights,
)
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.actors.relay.actor import Relay
from headrace.actors.session import Sampling
from headrace.transport import Actor, Context, LoopbackNetwork, PeerDown, Runtime, handles
from headrace.transport.weights import Manifest, SenderSettings, WeightSender, make_sender
from headrace.transport.weights.collective import COLLECTIVE
from model_table_run.gap import NUM_TOKENS, Sample

LEARNER_NODE, ENGINE_NODE = "training", "rollout"
SERVER, GENERATOR = "parameter_server/0", "generator/0"
BUCKET_BYTES = 16_384
START_S, UPDATE_S, ASK_S = 540.0, 120.0, 120.0
Tensors = Mapping[str, torch.Tensor]

TRANSPORTS = ("shm", "checkpoint", "stream", "delta", "nccl", "nccl_in_place")
"""nccl: over the communicator in shared memory; nccl_in_place: the same with weights.staging=false."""


class Refused(RuntimeError):
    """The engine did not take a version; says why."""


class Publisher(WeightGroupRoot):
    """In the learner's place: rank 0 of broadcasts, and the one who hears what was served, released and refused."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self.served = 0
        self._held: set[int] = set()
        self._refusal = self._lost = ""

    async def on_start(self, context: Context) -> None:
        context.watch("generator")

    def use(self, sender: WeightSender) -> None:
        self._sender = sender
        self._weights_transport = COLLECTIVE  # only asked for where versions are broadcast
        self._held.clear()  # what another sender holds, whose parameter server is gone, nobody will release
        self._refusal = ""

    async def publish(self, tensors: Tensors, version: int) -> Manifest:
        """Until it is served. Raises Refused; TimeoutError at the deadline."""
        assert self._sender is not None
        async with asyncio.timeout(UPDATE_S):
            staged = self._sender.stage(tensors, version=version, step=version)
            if staged is None:  # one buffer only, and it is the newest version's
                await self.context.ask(SERVER, WithdrawWeights(), timeout_s=ASK_S)
                await self._until(lambda: not self._held or bool(self._lost))
                staged = self._sender.stage(tensors, version=version, step=version)
            if staged is None:
                raise Refused(self._lost or "no buffer is free though every version was released")
            self._held.add(version)
            manifest = await asyncio.to_thread(staged.seal)
            await self.context.ask(SERVER, PublishWeights(manifest), timeout_s=ASK_S)
            await self._until(lambda: self.served >= version or bool(self._refusal or self._lost))
        if self._refusal or self._lost:
            raise Refused(self._refusal or self._lost)
        return manifest

    async def _until(self, condition: Any) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        return await self._heard(served=message.version)

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> Accepted:
        return await self._heard(released=message.version)

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> Accepted:
        return await self._heard(refusal=f"version {message.version}: {message.reason}")

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        await self._heard(lost=f"{message.name} died: {message.reason}")

    async def _heard(self, *, served: int = 0, released: int = 0, refusal: str = "", lost: str = "") -> Accepted:
        async with self._changed:
            self._lost = self._lost or lost
            self.served = max(self.served, served)
            self._refusal = self._refusal or refusal
            if released in self._held and self._sender is not None:
                self._held.discard(released)
                self._sender.release(released)
            self._changed.notify_all()
        return Accepted()


class Dispatcher(Actor):
    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        return Accepted()


class Monitor(Actor):
    """relayed: version → what the relay says of its way here."""

    def __init__(self) -> None:
        self.relayed: dict[int, dict[str, float]] = {}

    @handles(Metrics)
    async def metrics(self, message: Metrics) -> None:
        if message.stream.startswith("weights/relay"):
            self.relayed[int(message.step)] = message.values


class Hosts:
    """model_path: a Hugging Face folder, which the engine starts with. folder: where checkpoints are written."""

    def __init__(self, engine: Engine, *, model_path: Path, folder: Path) -> None:
        self._engine = engine
        self._model_path = model_path
        self._folder = folder
        self._run_id = f"model-table-{secrets.token_hex(4)}"
        self._network = LoopbackNetwork()
        self._numbers = itertools.count()
        self._directory: Any = None
        self._runtimes: list[Runtime] = []
        self._version = 0
        self._transport = ""
        self.monitor = Monitor()

    async def __aenter__(self) -> Hosts:
        self._host = await self._runtime(LEARNER_NODE)
        self._publisher = Publisher()
        for actor, name in (
            (self.monitor, "monitor/0"),
            (Dispatcher(), "dispatcher/0"),
            (self._publisher, "learner/0"),
        ):
            await self._host.add(actor, name)
        try:
            engines = await self._runtime(ENGINE_NODE)
            async with asyncio.timeout(START_S):
                await engines.add(Generator(engine=self._engine, metrics_period_s=0), GENERATOR)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for runtime in reversed(self._runtimes):
            await runtime.stop()

    @asynccontextmanager
    async def transport(self, name: str) -> AsyncIterator[None]:
        """Versions go by it within the block; with a parameter server, and a relay, of its own."""
        sender = make_sender(*self._sender_settings(name))
        self._publisher.use(sender)
        before = len(self._runtimes)
        try:
            await (await self._runtime(LEARNER_NODE)).add(ParameterServer(), SERVER)
            if name in ("stream", "delta"):
                relay = Relay(run_id=f"{self._run_id}-{name}", delta=name == "delta")
                await (await self._runtime(ENGINE_NODE)).add(relay, "relay/0")
            yield
        finally:
            while len(self._runtimes) > before:
                await self._runtimes.pop().stop()
            sender.close()

    def _sender_settings(self, name: str) -> tuple[str, SenderSettings]:
        kind = {"delta": "stream", "nccl_in_place": COLLECTIVE}.get(name, name)
        settings = SenderSettings(
            run_id=f"{self._run_id}-{name}",
            num_buffers=1 if name == "nccl_in_place" else 3,
            bucket_bytes=BUCKET_BYTES,
            folder=self._folder / name,
            model_folder=self._model_path,
            communicator="memory",
            node=LEARNER_NODE,
        )
        return kind, settings

    async def serve(self, tensors: Tensors) -> Manifest:
        """Publish the next version, until the engine serves it."""
        self._version += 1
        return await self._publisher.publish(tensors, self._version)

    async def sample(self, prompts: Sequence[tuple[int, ...]]) -> list[Sample]:
        """Of the newest version, all at once, at temperature 1. Raises RuntimeError where a token is another one's."""
        return list(await asyncio.gather(*(self._sample(prompt, seed) for seed, prompt in enumerate(prompts))))

    async def _sample(self, prompt: tuple[int, ...], seed: int) -> Sample:
        sampling = Sampling(temperature=1.0, max_tokens=NUM_TOKENS, seed=seed)
        request = Generate(f"{self._version}-{seed}", np.asarray(prompt, dtype=np.int32), sampling, fresh=True)
        found: Completion = await self._host.context.ask(GENERATOR, request, timeout_s=ASK_S)
        if set(found.versions.tolist()) != {self._version} or len(found.token_ids) != NUM_TOKENS:
            raise RuntimeError(f"version {self._version}: {len(found.token_ids)} tokens of {set(found.versions)}")
        return Sample(prompt, tuple(found.token_ids.tolist()), tuple(found.logprobs.tolist()))

    async def _runtime(self, node: str) -> Runtime:
        incarnation = f"process.{next(self._numbers)}"
        runtime = Runtime(
            self._network, directory=self._directory, incarnation=incarnation, node=node, encode_local=True
        )
        await runtime.start()
        self._directory = self._directory or runtime.address
        self._runtimes.append(runtime)
        return runtime
