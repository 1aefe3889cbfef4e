"""What the learner holds while it runs: policy, tokenizer, `rl` trainer, random generators; and how they are saved
and resumed.

Everything that reads or writes weights goes through `run`: a worker thread, one job at a time, so that staging,
saving and the optimizer never see each other's half-done work, not even where the awaiting task was cancelled.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from headrace.actors.learner.aggregation.protocol import Aggregation
from headrace.actors.learner.checkpoint import CheckpointInfo, CheckpointStore
from headrace.actors.learner.objectives.protocol import Objective
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.stages.settings import Progress
from headrace.actors.learner.trainer import Trainer
from headrace.transport import Context
from headrace.transport.weights.layout import model_tensors

T = TypeVar("T")


class Workbench:
    """Loads the newest checkpoint of `store` where there is one, else `model_folder`. Blocking; made in the worker
    thread."""

    def __init__(
        self,
        context: Context,
        store: CheckpointStore,
        model_folder: Path,
        *,
        objective: Objective,
        aggregation: Aggregation,
        packing: PackingSettings,
        adam: AdamSettings,
        autocast: str,
        device: str,
        num_threads: int | None,
        seed: int,
    ) -> None:
        from transformers import AutoTokenizer

        self._context = context
        self._store = store
        self._num_threads = num_threads
        self._autocast = autocast
        self._busy = threading.Lock()
        self.packing = packing
        self.progress = Progress()
        self._set_threads()
        store.clean()
        checkpoint = store.latest()
        self.resumed_from = checkpoint
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.policy = Policy.load(checkpoint or model_folder, autocast=autocast, device=device)
        self.trainer = Trainer(
            self.policy,
            Optimizer(self.policy.model.parameters(), adam),
            objective=objective,
            aggregation=aggregation,
            packing=packing,
        )
        if checkpoint is not None:
            self._resume(checkpoint)

    async def run(self, label: str, function: Callable[..., T], *args: Any) -> T:
        """In the worker thread, alone; the time counts as busy under `label`."""
        return await self._context.run_blocking(self._alone, function, *args, label=label)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What is published."""
        return model_tensors(self.policy.model)

    async def logprobs(self, sequences: list[TrainSequence]) -> list[np.ndarray]:
        return await self.run("probe", self.trainer.logprobs, sequences)

    async def reference(self) -> Policy:
        """A frozen copy of the policy as it was when `rl` began, kept on disk so that a resumed learner has it too."""
        return await self.run("reference", self._reference)

    def _reference(self) -> Policy:
        folder = self._store.reference(self.policy.model)
        reference = Policy.load(folder, autocast=self._autocast, device=str(self.policy.device))
        reference.model.requires_grad_(False)
        return reference

    async def save(self, version: int, version_step: int) -> Path:
        info = CheckpointInfo(self.progress.step, version, version_step)
        return await self.run("checkpoint", self._save, info)

    def _save(self, info: CheckpointInfo) -> Path:
        state = {
            "optimizer": self.trainer.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "torch_rng": torch.get_rng_state(),
        }
        return self._store.save(info, self.policy.model, state)

    def _resume(self, folder: Path) -> None:
        _, state = self._store.load_state(folder)
        self.trainer.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        torch.set_rng_state(state["torch_rng"])

    def _alone(self, function: Callable[..., T], *args: Any) -> T:
        with self._busy:
            self._set_threads()
            return function(*args)

    def _set_threads(self) -> None:
        if self._num_threads is not None and torch.get_num_threads() != self._num_threads:
            torch.set_num_threads(self._num_threads)
