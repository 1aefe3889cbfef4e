"""A torch engine that sleeps for real: its weights' memory is gone until it wakes, and what it is asked to compute
meanwhile fails. Also selected by `_target_` in a run of its own (test_engine_sleep.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headrace.actors.generator.torch_engine import TorchEngine


class DroppingEngine(TorchEngine):
    def __init__(self, *, folder: str, sleep_while_training: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.sleeps = sleep_while_training
        self.log: list[str] = []
        self._saved = Path(folder) / f"sleeping-{id(self)}.pt"

    @property
    def resident_bytes(self) -> int:
        assert self._model is not None
        return sum(p.untyped_storage().nbytes() for p in self._model.parameters())

    async def sleep(self) -> None:
        assert self.num_running == 0
        await self._in_thread(self._drop)
        self.log.append("sleep")

    async def wake(self) -> None:
        await self._in_thread(self._bring_back)
        self.log.append("wake")

    async def commit_weights(self, manifest: Any) -> Any:
        self.log.append(f"commit {manifest.version}")
        return await super().commit_weights(manifest)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        loop = self._alive()
        done: asyncio.Future[None] = loop.create_future()
        self._post(lambda: self._answer(done, work()))
        await self._unless_dead(done)

    def _drop(self) -> None:
        assert self._model is not None
        torch.save({name: p.data for name, p in self._model.named_parameters()}, self._saved)
        for parameter in self._model.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype)

    def _bring_back(self) -> None:
        assert self._model is not None
        saved = torch.load(self._saved)
        for name, parameter in self._model.named_parameters():
            parameter.data = saved[name]
