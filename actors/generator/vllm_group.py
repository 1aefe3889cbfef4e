"""vLLM in a collective broadcast, the engine's side: every worker is a rank, and goes on stepping the model meanwhile.

A call to vLLM's workers holds up their next step until all have answered: so each call only begins something, or asks
how far it is. The worker's side: vllm_group_worker.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.actors.generator.engine import EngineDied, StageTimings
from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.messages import JoinGroup
from headrace.transport.weights import Manifest, WeightsMismatch
from headrace.transport.weights.collective import HEADRACE
from headrace.transport.weights.collective.communicator import GroupBroken

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.engine.async_llm import AsyncLLM

WORKER = "headrace.actors.generator.vllm_group_worker.GroupWorker"
"""vLLM's worker_extension_cls."""
_MIN_POLL_S, _MAX_POLL_S = 0.005, 0.05
_GRACE_S = 3.0
"""A worker ends by its own deadline; this one is for a worker that does not."""
_ERRORS: dict[str, type[Exception]] = {"WeightsMismatch": WeightsMismatch, "GpuLost": EngineDied}


class VllmRanks:
    """See Ranks. `engine` raises EngineDied where there is none."""

    kind = HEADRACE

    def __init__(self, engine: Callable[[], AsyncLLM]) -> None:
        self._engine = engine

    async def count(self) -> int:
        return len(await self._call("headrace_group_rank"))

    async def join(self, message: JoinGroup) -> None:
        values = {
            "group": message.group,
            "backend": message.backend,
            "unique_id": message.unique_id,
            "rank": message.first_rank,
            "world_size": message.world_size,
            "timeout_s": message.timeout_s,
            "keep": message.keep,
        }
        await self._call("headrace_group_join", values)
        await self._until_done(message.timeout_s)

    async def receive(self, manifest: Manifest, broadcast: Broadcast) -> StageTimings:
        """Into each worker's staging buffer. Raises WeightsMismatch, GroupBroken."""
        from headrace.actors.generator.vllm_transfer import manifest_to_dict

        arguments = broadcast.group, manifest_to_dict(manifest), broadcast.timeout_s
        await self._call("headrace_group_receive", *arguments)
        found = await self._until_done(broadcast.timeout_s)
        send_s, verify_s = (max(float(worker[key]) for worker in found) for key in ("send_s", "verify_s"))
        return StageTimings(send_s, verify_s)

    async def abort(self, group: str) -> int:
        progress: list[int] = await self._call("headrace_group_abort", group)
        return min(progress)

    async def _until_done(self, timeout_s: float) -> list[dict[str, Any]]:
        deadline_s, poll_s = time.monotonic() + timeout_s + _GRACE_S, _MIN_POLL_S
        while True:
            found = await self._call("headrace_group_poll")
            for rank, worker in enumerate(found):
                if worker.get("error") is not None:
                    name, text = worker["error"]
                    raise _ERRORS.get(name, GroupBroken)(f"worker {rank}: {text}")
            if all(worker["done"] for worker in found):
                return found
            if time.monotonic() >= deadline_s:
                late = [rank for rank, worker in enumerate(found) if not worker["done"]]
                raise GroupBroken(f"workers {late} are not done {_GRACE_S:g} s after their deadline")
            await asyncio.sleep(poll_s)
            poll_s = min(_MAX_POLL_S, poll_s * 1.5)

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        replies: list[Any] = await self._engine().collective_rpc(method, args=arguments)
        return replies


class InWorkers:
    """See WeightReceiver: a version that every worker of the engine has in its staging buffer, verified there."""

    def verify(self) -> None:
        """Each worker has."""

    def tensors(self, *, include_tied: bool = False) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError("the tensors are in vLLM's workers")

    def check_unchanged(self) -> None:
        """Nobody else can write there."""

    def close(self) -> None:
        """The workers give their buffers back as they load."""
