"""A scripted engine with pipeline- and tensor-parallel workers: each is a rank and holds its stage's tensors only.

The engine's side of the broadcast is vLLM's (VllmRanks over collective_rpc) and so is the workers' (GroupWorker); what
is scripted is the model: a token is made of a tensor of each stage, and two micro-batches are under way at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from headrace.actors.generator.vllm_group import VllmRanks
from headrace.actors.generator.vllm_group_worker import GroupWorker, WorkersRank
from headrace.transport.weights import Manifest

BATCH_QUEUE = 2


class StageWorker(GroupWorker):
    """names: of its stage. It knows no other."""

    def __init__(self, rank: int, names: Iterable[str]) -> None:
        self.rank = rank
        self.device = torch.device("cpu")
        self.tensors = {name: torch.zeros(3) for name in names}
        self._place = WorkersRank("cpu")

    def _headrace_place(self) -> WorkersRank:
        return self._place

    def load(self, version: int) -> None:
        """As vLLM's load_weights with pipeline parallelism: what is not of this stage is passed over."""
        received = self._place.take(version)
        for name, tensor in received.tensors():
            if name in self.tensors:
                self.tensors[name] = tensor.clone()
        received.close()

    def close(self) -> None:
        self._place.receiver.close()


class PipelineEngine:
    """stages: the names of each; num_tensor: workers of a stage, each with all of its names here."""

    def __init__(self, stages: list[list[str]], num_tensor: int = 1) -> None:
        self.stages = [
            [StageWorker(stage * num_tensor + index, names) for index in range(num_tensor)]
            for stage, names in enumerate(stages)
        ]
        self.ranks = VllmRanks(lambda: self)  # type: ignore[arg-type,return-value]
        self.tokens: list[tuple[float, ...]] = []
        self._batch_queue: deque[tuple[float, ...]] = deque()
        self._paused = False
        self._closed = False

    @property
    def workers(self) -> list[StageWorker]:
        return [worker for stage in self.stages for worker in stage]

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        return [getattr(worker, method)(*args) for worker in self.workers]

    async def decode(self) -> None:
        """The first stage begins a token at each step, the last ends the one before: two stages, two versions, unless
        the queue is empty when weights change."""
        while not self._closed:
            if not self._paused and len(self._batch_queue) < BATCH_QUEUE:
                self._batch_queue.append(self._of_stage(0))
            await asyncio.sleep(0)
            if self._batch_queue and (self._paused or len(self._batch_queue) == BATCH_QUEUE):
                token = self._batch_queue.popleft()
                self.tokens.append(
                    (*token, *(value for s in range(1, len(self.stages)) for value in self._of_stage(s)))
                )
            await asyncio.sleep(0.001)

    async def commit(self, manifest: Manifest) -> None:
        self._paused = True
        while self._batch_queue:  # noqa: ASYNC110  # a scripted vLLM
            await asyncio.sleep(0)
        for worker in self.workers:
            worker.load(manifest.version)
        self._paused = False

    def close(self) -> None:
        self._closed = True
        for worker in self.workers:
            worker.close()

    def _of_stage(self, stage: int) -> tuple[float, ...]:
        return tuple(float(next(iter(worker.tensors.values()))[0]) for worker in self.stages[stage])
