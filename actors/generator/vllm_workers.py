"""vLLM's workers as the engine sees them: ranks of a broadcast, and those who open weights that lie in device memory.

The engine's process has no CUDA context and makes none: it never opens what ON_DEVICE names, and the workers verify it
before it is committed. The worker's side: vllm_group_worker.py, opened_weights.py.
"""

from __future__ import annotations

from headrace.actors.generator.engine import StageTimings
from headrace.actors.generator.vllm_group import VllmRanks
from headrace.transport.weights import Manifest, WeightsMismatch
from headrace.transport.weights.collective.communicator import GroupBroken

_OPEN_TIMEOUT_S = 120.0
"""For mapping and checksums, which visit the host at gigabytes a second."""


class VllmWorkers(VllmRanks):
    async def open(self, manifest: Manifest) -> StageTimings:
        """Every worker maps and verifies the version; load it with vllm_transfer.py. Raises WeightsMismatch."""
        from headrace.actors.generator.vllm_transfer import manifest_to_dict

        await self._call("headrace_open", manifest_to_dict(manifest))
        try:
            found = await self._until_done(_OPEN_TIMEOUT_S)
        except GroupBroken as error:  # there is no group here: late, or an error that a worker has no name for
            raise WeightsMismatch(f"version {manifest.version} was not opened by vLLM's workers: {error}") from error
        send_s, verify_s = (max(float(worker[key]) for worker in found) for key in ("send_s", "verify_s"))
        return StageTimings(send_s, verify_s)
