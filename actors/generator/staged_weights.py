"""The version that an engine has near and verified, but does not serve yet. At most one; held by the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from headrace.actors.generator.engine import StageTimings
from headrace.transport.weights import Expected, Manifest, WeightReceiver, WeightsMismatch, check_expected, open_weights


class StagedWeights:
    def __init__(self) -> None:
        self._manifest: Manifest | None = None
        self._receiver: WeightReceiver | None = None

    async def stage(self, manifest: Manifest, expected: Mapping[str, Expected]) -> StageTimings:
        """Every check that can fail is made here, while decoding goes on. Raises WeightsMismatch."""
        self.drop()
        check_expected(manifest, expected, cast_floats=True)
        started_s = time.perf_counter()
        receiver = await asyncio.to_thread(open_weights, manifest)
        near_s = time.perf_counter()
        await asyncio.to_thread(receiver.verify)
        self._manifest, self._receiver = manifest, receiver
        return StageTimings(send_s=near_s - started_s, verify_s=time.perf_counter() - near_s)

    def of(self, version: int) -> WeightReceiver:
        """Raises WeightsMismatch where another version is staged, or none."""
        if self._manifest is None or self._receiver is None or self._manifest.version != version:
            raise WeightsMismatch(f"version {version} is not staged; stage_weights comes first")
        return self._receiver

    def drop(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._manifest = self._receiver = None
