"""The actors of one run: the real parameter server, generators whose engine only holds weights, a learner that only
publishes. The weights of version v are v, everywhere: an engine that holds anything else is found out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import torch

from broadcast_faults import faults
from broadcast_faults.faults import Fault
from headrace.actors.generator.actor import Generator
from headrace.actors.generator.engine import CommitTimings, StageTimings
from headrace.actors.generator.group_ranks import Broadcast, LocalRank
from headrace.actors.generator.staged_weights import StagedWeights
from headrace.actors.learner.weight_group import WeightGroupRoot
from headrace.actors.messages import (
    Accepted,
    Completion,
    Generate,
    JoinGroup,
    OpenGroup,
    PublishWeights,
    SendWeights,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
)
from headrace.transport import Actor, Context, PeerUp, TransportError, handles, insist, message
from headrace.transport.weights import Expected, Manifest, SenderSettings
from headrace.transport.weights.collective.sender import CollectiveSender

HUB = "dispatcher/0"
NUM_VALUES, BUCKET_BYTES = 1 << 18, 1 << 16
"""1 MiB in 16 buckets"""


@message("matrix.arm")
@dataclass(frozen=True, slots=True)
class Arm:
    """hub → generator or learner: the fault that comes next."""

    kind: str
    phase: str
    slow_s: float


@message("matrix.reached")
@dataclass(frozen=True, slots=True)
class Reached:
    """generator or learner → hub: it is in that phase, and stays there for a moment."""

    phase: str


@message("matrix.look")
@dataclass(frozen=True, slots=True)
class Look:
    """hub → generator (ask → Seen)."""


@message("matrix.seen")
@dataclass(frozen=True, slots=True)
class Seen:
    """The version that it serves, and the least and the largest of its weights."""

    version: int
    least: float
    most: float


@message("matrix.publish")
@dataclass(frozen=True, slots=True)
class PublishNext:
    """hub → learner (ask → Accepted): stage the next version and announce it."""


class _Faulty:
    fault: Fault | None = None

    def arm(self, context: Context, arm: Arm) -> None:
        loop = asyncio.get_running_loop()

        def tell(phase: str) -> None:
            loop.call_soon_threadsafe(context.tell_soon, HUB, Reached(phase))

        self.fault = Fault(arm.kind, arm.phase, arm.slow_s, tell)

    async def strike(self, phase: str) -> None:
        if self.fault is not None:
            await self.fault.strike(phase)


class _StruckRank(LocalRank):
    def __init__(self, faulty: _Faulty) -> None:
        super().__init__()
        self._faulty = faulty

    async def count(self) -> int:
        await self._faulty.strike("gather")
        return await super().count()

    async def join(self, message: JoinGroup) -> None:
        await self._faulty.strike("join")
        await super().join(message)


class WeightHolder(_Faulty):
    """An engine that has weights and no model."""

    def __init__(self) -> None:
        self.version = 0
        self.num_running = 0
        self.ranks = _StruckRank(self)
        self.weights = torch.zeros(NUM_VALUES)
        self._staged = StagedWeights()

    async def start(self) -> None:
        faults.install(lambda: self.fault)

    async def generate(self, request: Generate) -> Completion:
        raise NotImplementedError

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        raise NotImplementedError

    async def load_arriving(self, manifest: Manifest, broadcast: Broadcast) -> CommitTimings:
        raise NotImplementedError

    async def receive_weights(self, manifest: Manifest, broadcast: Broadcast) -> StageTimings:
        if self.fault is not None and self.fault.kind in ("other_order", "refuses") and self.fault.is_due("send"):
            if self.fault.kind == "refuses":
                self.fault._at_once()
            manifest = replace(manifest, buckets=manifest.buckets[::-1])
        expected = {"w": Expected((NUM_VALUES,), "float32")}
        return await self._staged.receive(manifest, expected, self.ranks, broadcast)

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        await self.strike("commit")
        for _, tensor in self._staged.of(manifest.version).tensors():
            self.weights.copy_(tensor)
        self._staged.drop()
        self.version = manifest.version
        return CommitTimings(0.0, 0.0, 0)

    async def close(self) -> None:
        self.ranks.close()


class Member(Generator):
    def __init__(self) -> None:
        self._holder = WeightHolder()
        super().__init__(engine=self._holder, metrics_period_s=0)

    @handles(Arm)
    async def arm(self, message: Arm) -> Accepted:
        self._holder.arm(self.context, message)
        return Accepted()

    @handles(Look, concurrent=True)
    async def look(self, message: Look) -> Seen:
        weights = self._holder.weights
        return Seen(self._holder.version, float(weights.min()), float(weights.max()))


class StubLearner(WeightGroupRoot, _Faulty):
    """first_version: one more than any that an earlier life of it may have published."""

    def __init__(self, *, first_version: int) -> None:
        self._version = first_version - 1
        self._restarted = first_version > 1
        self._weights_transport = "nccl"
        settings = SenderSettings(run_id="matrix", bucket_bytes=BUCKET_BYTES, communicator="memory")
        self._sender: CollectiveSender = CollectiveSender(settings)
        self._newest: Manifest | None = None
        self._server: str | None = None

    async def on_start(self, context: Context) -> None:
        faults.install(lambda: self.fault)
        context.watch("parameter_server")
        if self._restarted:
            context.spawn(self._publish(), "publish")

    async def on_stop(self) -> None:
        self._sender.close()

    @handles(Arm)
    async def arm_it(self, message: Arm) -> Accepted:
        self.arm(self.context, message)
        return Accepted()

    @handles(PublishNext, concurrent=True)
    async def publish(self, message: PublishNext) -> Accepted:
        await self._publish()
        return Accepted()

    @handles(OpenGroup, concurrent=True)
    async def open_group(self, message: OpenGroup) -> Any:
        await self.strike("gather")  # rank 0 is asked for an id once all are there
        return await super().open_group(message)

    @handles(JoinGroup, concurrent=True)
    async def join_group(self, message: JoinGroup) -> Any:
        await self.strike("join")
        return await super().join_group(message)

    @handles(SendWeights, concurrent=True)
    async def send_weights(self, message: SendWeights) -> Any:
        return await super().send_weights(message)

    @handles(VersionServed)
    async def served(self, message: VersionServed) -> Accepted:
        return Accepted()

    @handles(WeightsReleased)
    async def released(self, message: WeightsReleased) -> Accepted:
        self._sender.release(message.version)
        return Accepted()

    @handles(WeightsRefused)
    async def refused(self, message: WeightsRefused) -> Accepted:
        if message.version == self._version:
            self.context.spawn(self._publish(), "publish anew")
        return Accepted()

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        restarted, self._server = self._server not in (None, message.incarnation), message.incarnation
        if restarted and self._newest is not None:
            for version in range(self._newest.version):
                self._sender.release(version)
            self.context.spawn(self._announce(self._newest), "announce again")

    async def _publish(self) -> None:
        self._version += 1
        version = self._version
        weights = {"w": torch.full((NUM_VALUES,), float(version))}
        while (staged := self._sender.stage(weights, version=version, step=version)) is None:
            await self.context.clock.sleep(0.05)
        self._newest = staged.seal()
        await self._announce(self._newest)

    async def _announce(self, manifest: Manifest) -> None:
        try:
            await insist(self.context, "parameter_server/0", PublishWeights(manifest), timeout_s=10.0, patience_s=60.0)
        except TransportError:
            if manifest is self._newest:
                raise


class Hub(Actor):
    """Hears what the dispatcher hears, and where a fault may strike."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self.reached: asyncio.Queue[str] = asyncio.Queue(maxsize=16)

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        self.served.append(message.version)
        return Accepted()

    @handles(Reached)
    async def phase_reached(self, message: Reached) -> None:
        self.reached.put_nowait(message.phase)
