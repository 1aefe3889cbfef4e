"""The version that an engine has near and verified, but does not serve yet. At most one; held by the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from headrace.actors.generator.adapter import check_version, missing_base
from headrace.actors.generator.engine import StageTimings
from headrace.actors.generator.group_ranks import Broadcast, LocalRank
from headrace.transport.weights import Expected, Manifest, WeightReceiver, WeightsMismatch, open_weights


class StagedWeights:
    def __init__(self) -> None:
        self._manifest: Manifest | None = None
        self._receiver: WeightReceiver | None = None
        self.base: WeightReceiver | None = None
        """Full weights that must be loaded before the staged adapter; None otherwise."""

    async def stage(
        self, manifest: Manifest, expected: Mapping[str, Expected], held: Manifest | None = None
    ) -> StageTimings:
        """Every check that can fail is made here, while decoding goes on. `held`: the full weights that the engine has,
        None for those of its model folder. Raises WeightsMismatch."""
        self.drop()
        check_version(manifest, expected)
        base = missing_base(manifest, held)
        started_s = time.perf_counter()
        receiver = await asyncio.to_thread(open_weights, manifest)
        below = None if base is None else await asyncio.to_thread(open_weights, base)
        near_s = time.perf_counter()
        await asyncio.to_thread(receiver.verify)
        if below is not None:
            await asyncio.to_thread(below.verify)
        self._manifest, self._receiver, self.base = manifest, receiver, below
        return StageTimings(send_s=near_s - started_s, verify_s=time.perf_counter() - near_s)

    async def receive(
        self, manifest: Manifest, expected: Mapping[str, Expected], rank: LocalRank, broadcast: Broadcast
    ) -> StageTimings:
        """As `stage`, for full weights that are broadcast now. Raises GroupBroken too."""
        self.drop()
        check_version(manifest, expected)
        received = await rank.receive(manifest, broadcast)
        self.adopt(manifest, received)
        return StageTimings(send_s=received.send_s, verify_s=received.verify_s)

    def adopt(self, manifest: Manifest, receiver: WeightReceiver) -> None:
        """A version that is near and verified already."""
        self._manifest, self._receiver, self.base = manifest, receiver, None

    def of(self, version: int) -> WeightReceiver:
        """Raises WeightsMismatch where another version is staged, or none."""
        if self._manifest is None or self._receiver is None or self._manifest.version != version:
            raise WeightsMismatch(f"version {version} is not staged; stage_weights comes first")
        return self._receiver

    def drop(self) -> None:
        for receiver in (self._receiver, self.base):
            if receiver is not None:
                receiver.close()
        self._manifest = self._receiver = self.base = None
