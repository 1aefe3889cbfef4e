"""A learner without a model: the real learner's way through a run, with steps that last as long as their tokens take.

It asks for batches, reports and publishes through the real learner's own dispatcher link, publisher and version log,
in the order of `RlStage`; a step of n trained tokens lasts n / tokens_per_s. The weights are numbers of buffers. When
the run is over it writes what each step took to `record`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.actors.learner.dispatcher_link import DispatcherLink
from headrace.actors.learner.publisher import Publisher
from headrace.actors.learner.versions import VersionLog
from headrace.actors.messages import (
    Accepted,
    Batch,
    BatchTrained,
    NextBatch,
    TrainingFinished,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
)
from headrace.transport import Actor, Context, PeerDown, PeerUp, handles
from headrace.transport.weights import Manifest

WAIT_S = 3600.0
SKIPPED_WAIT_S = 0.05
"""as the real learner: asks again soon where a publication found no free buffer"""
ANSWER_S = 600.0
PUBLISH_S = 1e6
"""an engine that drains for an update holds it up as long as its longest session lasts"""


@dataclass(frozen=True, slots=True)
class Sealed:
    version: int
    step: int

    def seal(self) -> Manifest:
        return Manifest(self.version, self.step, "shm", "", 0, (), (), {})


class BufferNumbers:
    """A sender of weights without weights, in so many buffers."""

    def __init__(self, num_buffers: int) -> None:
        self._free = num_buffers
        self._held: set[int] = set()

    def stage(self, tensors: Mapping[str, Any], *, version: int, step: int, dtype: str | None = None) -> Sealed | None:
        if not self._free:
            return None
        self._free -= 1
        self._held.add(version)
        return Sealed(version, step)

    def release(self, version: int) -> None:
        if version in self._held:
            self._held.discard(version)
            self._free += 1

    def close(self) -> None:
        """Nothing is held."""


class PacedLearner(Actor):
    """tokens_per_s: what it trains. steps: how many. sync: every version is served before the next batch is asked for,
    as with mode=sync."""

    def __init__(self, *, tokens_per_s: float, steps: int, versions_file: str, record: str, sync: bool = False) -> None:
        self._tokens_per_s = tokens_per_s
        self._steps = steps
        self._sync = sync
        self._versions_file = Path(versions_file)
        self._record = Path(record)
        self._step = 0
        self._rows: list[dict[str, float]] = []

    async def on_start(self, context: Context) -> None:
        self._dispatcher = DispatcherLink(context, patience_s=ANSWER_S)
        self._publisher = Publisher(
            context, BufferNumbers(2), VersionLog(self._versions_file), tensors=dict, run=run_now, every_steps=1,
            dtype=None, timeout_s=PUBLISH_S,
        )  # fmt: skip
        context.watch("parameter_server")
        context.spawn(self._learn(), "learn")

    async def _learn(self) -> None:
        clock = self.context.clock
        await self._publisher.wait_served(await self._publisher.publish(0))
        waiting_from_s = clock.time()
        while self._step < self._steps:
            skipped = not self._sync and self._publisher.is_due(self._step)
            wait_s = SKIPPED_WAIT_S if skipped else WAIT_S
            batch: Batch = await self._dispatcher.ask(NextBatch(self._step, wait_s), timeout_s=wait_s + ANSWER_S)
            if batch.groups:
                await self._train(batch, waited_s=clock.time() - waiting_from_s)
                waiting_from_s = clock.time()
            elif skipped:
                await self._publisher.publish_if_due(self._step)
        self._record.write_text(json.dumps(self._rows))
        finished = TrainingFinished(self._step, self._publisher.version)
        await self._dispatcher.ask(finished, timeout_s=ANSWER_S)

    async def _train(self, batch: Batch, *, waited_s: float) -> None:
        trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
        tokens = sum(trajectory.num_trained_tokens for trajectory in trajectories)
        await self.context.clock.sleep(tokens / self._tokens_per_s)
        self._step += 1
        ids = tuple(trajectory.spec.session_id for trajectory in trajectories)
        await self._dispatcher.ask(BatchTrained(self._step, ids), timeout_s=ANSWER_S)
        if self._sync:
            await self._publisher.wait_served(await self._publisher.publish(self._step))
        else:
            await self._publisher.publish_if_due(self._step)
        self._rows.append({"ended_s": self.context.clock.time(), "waited_s": waited_s, "tokens": tokens})

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        self._publisher.served(message.version)
        return Accepted()

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> Accepted:
        self._publisher.released(message.version)
        return Accepted()

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> Accepted:
        self._publisher.refused(message.version, message.reason, step=lambda: self._step)
        return Accepted()

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        self._publisher.server_up(message.incarnation)

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        """Training goes on with the version in service."""


async def run_now(label: str, function: Callable[..., Any], *args: Any) -> Any:
    """Staging takes no time here."""
    return function(*args)
