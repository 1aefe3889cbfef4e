"""What the learner holds while it runs: policy, tokenizer, `rl` trainer, random generators; and how they are saved
and resumed.

Everything that reads or writes weights goes through `run`: the worker thread, one job at a time, so that staging,
saving and the optimizer never see each other's half-done work. Only observers read beside it, and hold the weights.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from headrace.actors.learner.adapters import CONFIG_NAME, Adapters, cast
from headrace.actors.learner.advantages import Advantage, Remembers
from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.aggregation.protocol import Aggregation
from headrace.actors.learner.checkpoint import REFERENCE, SHARDS, CheckpointInfo, CheckpointStore
from headrace.actors.learner.checkpoint_copy import ModelCopy, copied
from headrace.actors.learner.corrections import Correction
from headrace.actors.learner.critic import CriticSettings
from headrace.actors.learner.kl import KlPenalty
from headrace.actors.learner.lora import LoraSettings
from headrace.actors.learner.objectives import CrossEntropy
from headrace.actors.learner.objectives.protocol import Objective
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.passes import sequence_logprobs
from headrace.actors.learner.policy import Interrupted, Policy, WithoutAdapters
from headrace.actors.learner.random_state import random_state, set_random_state
from headrace.actors.learner.ranks import ALONE, Ranks
from headrace.actors.learner.ranks.share import Share
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.stages.settings import Progress
from headrace.actors.learner.stages.supervised import StagePlace
from headrace.actors.learner.threads import ComputeThreads
from headrace.actors.learner.trainer import RL, Trainer
from headrace.actors.learner.value_head import Critic
from headrace.transport.weights import Adapter, Manifest
from headrace.transport.weights.layout import build_layout, model_tensors, whole

logger = logging.getLogger(__name__)

T = TypeVar("T")

STAGES = ("pretrain", "sft")
"""before `rl`, in this order; each has checkpoints of its own, in a folder of its name"""
BENCH = "bench"
"""what is announced to other ranks is the workbench's own, or a trainer's, by its name"""


class Workbench:
    """Loads the newest checkpoint of `store` where there is one, else `model_folder`. Blocking; made by `threads.run`.
    lora: train adapters; where `pretrains`, from `adapt` on, and every weight before it. critic: its value head is
    trained as a whole, also beside adapters. advantage: of which checkpoints hold what it remembers. ranks: each has a
    workbench; rank 0's is the learner's, the others `serve`. Several have neither adapters nor a critic."""

    def __init__(
        self,
        threads: ComputeThreads,
        store: CheckpointStore,
        model_folder: Path,
        *,
        objective: Objective,
        aggregation: Aggregation,
        corrections: Mapping[str, Correction],
        num_minibatches: int,
        num_epochs: int,
        lr_ess_scaling: bool,
        packing: PackingSettings,
        adam: AdamSettings,
        autocast: str,
        logits_chunk_tokens: int,
        device: str,
        seed: int,
        lora: LoraSettings | None = None,
        pretrains: bool = False,
        critic: CriticSettings | None = None,
        advantage: Advantage | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        from transformers import AutoTokenizer

        self._threads = threads
        self._store = store
        self._autocast = autocast
        self._logits_chunk_tokens = logits_chunk_tokens
        self._lora = lora
        self._adam = adam
        self._objective = objective
        self._aggregation = aggregation
        self._corrections = corrections
        self._num_minibatches = num_minibatches
        self._num_epochs = num_epochs
        self._lr_ess_scaling = lr_ess_scaling
        self._observer: Policy | None = None
        self._saved: CheckpointInfo | None = None
        self.packing = packing
        self.progress = Progress()
        self._advantage = advantage
        self._writing: asyncio.Task[None] | None = None
        self._shard_writer = ThreadPoolExecutor(1, "learner-shards")
        self._writing_shards: Future[None] | None = None
        self.checkpoint_figures: dict[str, float] = {}
        self._ranks = ranks
        self._trainers: dict[str, Trainer] = {}
        self._places: dict[str, StagePlace] = {}
        if ranks.rank == 0:
            store.clean()
        checkpoint = ranks.gather(store.latest())[0]
        self._stage_checkpoint: tuple[str, Path] | None = None
        if checkpoint is None and pretrains:
            self._stage_checkpoint = ranks.gather(self._latest_of_stages())[0]
        self.resumed_from = checkpoint
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        if checkpoint is not None:
            _check_kind(checkpoint, lora)
        weights = checkpoint or (model_folder if self._stage_checkpoint is None else self._stage_checkpoint[1])
        if checkpoint is not None and lora is not None:
            weights = store.base
        self.policy = Policy.load(weights, autocast=autocast, device=device, logits_chunk_tokens=logits_chunk_tokens)
        self.policy.shard(ranks)
        self._critic: Critic | None = None
        if critic is not None:
            self._critic = Critic(critic, hidden_size=self.policy.hidden_size, device=self.policy.device)
        self.trainer = self._make_trainer()
        if lora is not None and checkpoint is not None:
            self._put_adapters(lora).load(checkpoint)
        elif lora is not None and not pretrains:
            self._store.keep_base(None)
            self._put_adapters(lora)
        if checkpoint is not None:
            self._resume(checkpoint)

    async def run(self, label: str, function: Callable[..., T], *args: Any) -> T:
        """See ComputeThreads."""
        return await self._threads.run(label, function, *args)

    async def adapt(self) -> None:
        """After `pretrain`: what it trained is the base from now on. Nothing without `lora`, or where it was done."""
        if self._lora is not None and self.policy.adapters is None:
            await self.run("adapt", self._adapt, self._lora)

    def _adapt(self, lora: LoraSettings) -> None:
        cast(self.policy.model, lora.base_dtype)
        self._store.keep_base(self.policy.model)
        self._put_adapters(lora)

    def _put_adapters(self, lora: LoraSettings) -> Adapters:
        adapters = self.policy.adapt(lora, base=self._store.base)
        self.trainer = self._make_trainer()
        trained = sum(tensor.numel() for tensor in adapters.tensors().values())
        logger.info("adapters of rank %d on %d modules: %d numbers", lora.rank, len(adapters.modules), trained)
        return adapters

    def _make_trainer(self) -> Trainer:
        critic = self._critic
        optimizer = Optimizer(
            self.policy.model.parameters(),
            self._adam,
            head=() if critic is None else critic.head.parameters(),
            head_lr=0.0 if critic is None else critic.settings.lr,
        )
        self._trainers[RL] = Trainer(
            self.policy,
            optimizer,
            objective=self._objective,
            aggregation=self._aggregation,
            packing=self.packing,
            corrections=self._corrections,
            num_minibatches=self._num_minibatches,
            num_epochs=self._num_epochs,
            lr_ess_scaling=self._lr_ess_scaling,
            critic=critic,
            ranks=self._ranks,
        )
        return self._trainers[RL]

    def make_supervised(self, name: str, adam: AdamSettings) -> Trainer:
        """Of the stage `name`: next-token cross-entropy, with an optimizer of its own. Called in `run`."""
        self._ranks.announce(BENCH, "make_supervised", name, adam)
        self._trainers[name] = Trainer(
            self.policy,
            Optimizer(self.policy.model.parameters(), adam),
            objective=CrossEntropy(),
            aggregation=TokenMean(),
            packing=self.packing,
            ranks=self._ranks,
            name=name,
        )
        if self._stage_checkpoint is not None and self._stage_checkpoint[0] == name:
            folder = self._stage_checkpoint[1]
            state = self._store.load_state(folder)[1]
            self._load_optimizer(self._trainers[name].optimizer, folder, state["optimizer"])
            self._places[name] = StagePlace(**state["place"])
        return self._trainers[name]

    def is_past(self, name: str) -> bool:
        """Whether an earlier life came to a stage behind this one."""
        return self._stage_checkpoint is not None and STAGES.index(name) < STAGES.index(self._stage_checkpoint[0])

    def place(self, name: str) -> StagePlace | None:
        """Where an earlier life left the stage that `make_supervised` was called for."""
        return self._places.get(name)

    async def save_stage(self, name: str, place: StagePlace) -> None:
        """On disk when it returns."""
        await self.run("checkpoint", self._save_stage, name, place)

    def _save_stage(self, name: str, place: StagePlace) -> None:
        info = CheckpointInfo(place.step, version=0, version_step=-1)
        state = {"optimizer": self._optimizer_state(name), "place": asdict(place)}
        if self._ranks.size == 1:
            self._stage_store(name).save(info, self._model_to_write(), state)
        else:
            self._copy_of_ranks(info, name, state)()

    def _stage_store(self, name: str) -> CheckpointStore:
        return self._store if name == RL else self._store.beside(name)

    def _latest_of_stages(self) -> tuple[str, Path] | None:
        stores = {name: self._stage_store(name) for name in reversed(STAGES)}
        if self._ranks.rank == 0:
            for store in stores.values():
                store.clean()
        return next(((name, found) for name, store in stores.items() if (found := store.latest())), None)

    def serve(self, heard: Callable[[], tuple[str, str, tuple[Any, ...]] | None]) -> None:
        """At every rank but 0, in the worker thread: do what rank 0 announces, until the end."""
        while (announced := heard()) is not None:
            whose, method, args = announced
            try:
                getattr(self if whose == BENCH else self._trainers[whose], method)(*args)
            except Interrupted:  # at every rank; the learner stops, or goes on with something else
                continue
        if self._writing_shards is not None:
            self._writing_shards.result()

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """What is published: every weight, or the adapters alone. Sharded ones are to be gone through once, in their
        order (`build_layout`), as the other ranks do."""
        adapters = self.policy.adapters
        found = model_tensors(self.policy.model) if adapters is None else adapters.tensors()
        if self._ranks.size == 1:
            return found
        return Announced(found, lambda: self._ranks.announce(BENCH, "gather_tensors"))

    def gather_tensors(self) -> None:
        """At another rank, while rank 0 copies what `tensors` gave into a buffer."""
        found = model_tensors(self.policy.model)
        for spec in build_layout(found).tensors:
            whole(found[spec.name])

    def base_tensors(self) -> dict[str, torch.Tensor] | None:
        """See AdapterSource."""
        return self._adapters().base_tensors() if self._store.base_is_own else None

    def adapter(self, base: Manifest | None) -> Adapter:
        """See AdapterSource."""
        return self._adapters().description(base)

    def _adapters(self) -> Adapters:
        if self.policy.adapters is None:
            raise RuntimeError("there are no adapters yet; adapt() comes before the first publication")
        return self.policy.adapters

    async def logprobs(self, sequences: list[TrainSequence]) -> list[np.ndarray]:
        return await self.run("probe", self.trainer.logprobs, sequences)

    def observe(
        self, sequences: list[TrainSequence], autocasts: Sequence[str]
    ) -> Callable[[], Awaitable[dict[str, list[np.ndarray]]]]:
        """Log-probs under the weights of this moment, by each autocast. What is returned computes them beside training,
        and is to be awaited once, and soon: the optimizer waits for it. Called in `run`."""
        if self._ranks.size > 1:
            return _there(self.observe_now(sequences, tuple(autocasts)))
        if self._observer is None or not self._observer.observes(self.policy):
            self._observer = self.policy.observer()
        observer, hold = self._observer, self.policy.holds.take()

        def compute() -> dict[str, list[np.ndarray]]:
            with hold:
                return {
                    autocast: sequence_logprobs(observer.under(autocast), sequences, self.packing)
                    for autocast in autocasts
                }

        return lambda: self._threads.run_beside("update probe", compute)

    def observe_now(self, sequences: list[TrainSequence], autocasts: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
        """Several ranks meet for it: nothing else can be computed beside."""
        self._ranks.announce(BENCH, "observe_now", sequences, autocasts)
        share = Share(self._ranks, self.policy.hidden_size)
        return {
            autocast: sequence_logprobs(self.policy.under(autocast), sequences, self.packing, share)
            for autocast in autocasts
        }

    async def penalise(self, kl: KlPenalty) -> None:
        """From now on `rl` holds the policy near what it was when that stage began: the base below the adapters, or a
        frozen copy, kept on disk so that a resumed learner has it too."""
        await self.run("reference", self.penalise_now, kl)

    def penalise_now(self, kl: KlPenalty) -> None:
        self._ranks.announce(BENCH, "penalise_now", kl)
        adapters = self.policy.adapters
        reference = self._reference() if adapters is None else WithoutAdapters(self.policy, adapters)
        self.trainer.penalise(kl, reference)

    def _reference(self) -> Policy:
        model = self._model_to_write()
        if self._ranks.rank == 0:
            self._store.reference(model)
        (folder, *_) = self._ranks.gather(self._store.root / REFERENCE)
        reference = Policy.load(
            folder,
            autocast=self._autocast,
            device=str(self.policy.device),
            logits_chunk_tokens=self._logits_chunk_tokens,
        )
        reference.model.requires_grad_(False)
        reference.shard(self._ranks)
        return reference

    def _model_to_write(self) -> Any:
        """What has save_pretrained: of sharded weights a whole copy, at rank 0."""
        if self._ranks.size == 1:
            return self.policy.adapters or self.policy.model
        return ModelCopy(self.policy.model, self.whole_weights())

    def whole_weights(self) -> dict[str, torch.Tensor]:
        """At every rank; at rank 0, by name as `state_dict` has them, in memory of their own on the host."""
        copies: dict[int, torch.Tensor] = {}
        state: dict[str, torch.Tensor] = {}
        for name, tensor in self.policy.model.state_dict(keep_vars=True).items():
            if id(tensor) not in copies:
                found = whole(tensor.detach())
                if self._ranks.rank == 0:
                    copies[id(tensor)] = found.to("cpu", copy=True)
            if self._ranks.rank == 0:
                state[name] = copies[id(tensor)]
        return state

    async def save(self, version: int, version_step: int) -> None:
        """See CheckpointInfo. On disk when it returns. Nothing where the last one says the same."""
        await self._written()
        await self.run("checkpoint", self._save, version, version_step)

    async def save_new_steps(self, version: int, version_step: int) -> None:
        """Nothing where no step was taken since the last checkpoint of this life, or there was none."""
        await self._written()
        await self.run("checkpoint", self._save_new_steps, version, version_step)

    async def save_beside(self, version: int, version_step: int) -> None:
        """Returns when all is copied; it is written while training goes on. One at a time: nothing, but a count, where
        the one before is still being written. One that cannot be written is told of, and training goes on."""
        if self._writing is not None and not self._writing.done():
            self._count("skipped")
            return
        began_s = time.monotonic()
        info, write = await self.run("copy for a checkpoint", self._copy, version, version_step)
        self.checkpoint_figures["seconds/copy"] = time.monotonic() - began_s
        self._writing = asyncio.ensure_future(self._write(info, write))

    async def _write(self, info: CheckpointInfo, write: Callable[[], object]) -> None:
        began_s = time.monotonic()
        try:
            await self._threads.write("checkpoint", write)
        except Exception as error:  # safetensors and torch have each their own for a full disk
            self._count("failed")
            logger.error(
                "the checkpoint of step %d could not be written (%s); the one before it stays, training goes on",
                info.step,
                error,
            )
        else:
            self._saved = info
            self.checkpoint_figures["seconds/write"] = time.monotonic() - began_s
            self._count("written")

    async def _written(self) -> None:
        if self._writing is not None:
            await self._writing

    def _count(self, what: str) -> None:
        self.checkpoint_figures[what] = self.checkpoint_figures.get(what, 0.0) + 1.0

    async def evaluated(self, step: int, score: float) -> None:
        """See CheckpointStore."""
        await self._threads.write("checkpoint", self._store.evaluated, step, score)

    def _save_new_steps(self, version: int, version_step: int) -> None:
        if self._saved is not None and self._saved.step != self.progress.step:
            self._save(version, version_step)

    def _save(self, version: int, version_step: int) -> None:
        info = CheckpointInfo(self.progress.step, version, version_step)
        if info == self._saved:
            return
        if self._ranks.size == 1:
            self._store.save(info, self._model_to_write(), self._state())
        else:
            self._copy_of_ranks(info, RL, self._state())()
        self._saved = info

    def _copy(self, version: int, version_step: int) -> tuple[CheckpointInfo, Callable[[], object]]:
        """What a checkpoint of now holds, and what writes it, later and beside training."""
        info = CheckpointInfo(self.progress.step, version, version_step)
        if self._ranks.size > 1:
            return info, self._copy_of_ranks(info, RL, self._state())
        model, state = ModelCopy(self._model_to_write()), copied(self._state())
        return info, lambda: self._store.save(info, model, state)

    def _copy_of_ranks(self, info: CheckpointInfo, name: str, state: dict[str, Any]) -> Callable[[], object]:
        store = self._stage_store(name)
        partial = store.partial(info)
        self._ranks.announce(BENCH, "whole_weights")
        model, state = self._model_to_write(), copied(state)
        write = self.copy_shards(name, partial / SHARDS)
        return lambda: store.save(info, model, state, partial=partial, shards=lambda folder: write())

    def copy_shards(self, name: str, folder: Path) -> Callable[[], None]:
        """At every rank: of the tensors of that trainer's optimizer, its part. → what writes them, which meets with the
        other ranks'; at these it is under way."""
        from headrace.actors.learner.ranks.shards import copied_parts, write_shards

        self._ranks.announce(BENCH, "copy_shards", name, folder)
        parts = copied_parts(self._trainers[name].optimizer.tensors())

        def write() -> None:
            write_shards(folder, parts, self._ranks.files)

        if self._ranks.rank > 0:
            self._writing_shards = self._shard_writer.submit(write)
            self._writing_shards.add_done_callback(_tell_failure)
        return write

    def _state(self) -> dict[str, Any]:
        return {
            "optimizer": self._optimizer_state(RL),
            "progress": asdict(self.progress),
            "random": random_state(),
            "advantage": self._advantage.state_dict() if isinstance(self._advantage, Remembers) else None,
            "value_head": None if self._critic is None else self._critic.head.state_dict(),
        }

    def _optimizer_state(self, name: str) -> dict[str, Any]:
        """Of several ranks without the tensors."""
        optimizer = self._trainers[name].optimizer
        return optimizer.state_dict() if self._ranks.size == 1 else {"param_groups": optimizer.groups()}

    def _resume(self, folder: Path) -> None:
        _, state = self._store.load_state(folder)
        _load_head(self._critic, state.get("value_head"), folder)
        self._load_optimizer(self.trainer.optimizer, folder, state["optimizer"])
        self.progress = Progress(**state["progress"])
        if isinstance(self._advantage, Remembers) and state.get("advantage") is not None:
            self._advantage.load_state_dict(state["advantage"])
        set_random_state(state["random"])

    def _load_optimizer(self, optimizer: Optimizer, folder: Path, saved: dict[str, Any]) -> None:
        """Of as many ranks as there were, or another number."""
        alone = self._ranks.size == 1
        if "state" in saved and alone:
            optimizer.load_state_dict(saved)
            return
        from headrace.actors.learner.ranks.shards import like, read_shards

        tensors = optimizer.tensors()
        if "state" not in saved:
            read_shards(folder / SHARDS, tensors, alone=alone)
            return
        for name, tensor in tensors.items():
            number, _, kind = name.partition(".")
            if int(number) in saved["state"]:  # a weight that was never trained has none
                tensor.copy_(like(saved["state"][int(number)][kind], tensor))


class Announced(dict[str, torch.Tensor]):
    """The other ranks are told when the first tensor is taken by its name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], announce: Callable[[], None]) -> None:
        super().__init__(tensors)
        self._announce: Callable[[], None] | None = announce

    def __getitem__(self, name: str) -> torch.Tensor:
        announce, self._announce = self._announce, None
        if announce is not None:
            announce()
        return super().__getitem__(name)


def _there(value: T) -> Callable[[], Awaitable[T]]:
    async def get() -> T:
        return value

    return get


def _tell_failure(written: Future[None]) -> None:
    error = written.exception()
    if error is not None:
        logger.error("the optimizer's part of a checkpoint could not be written: %s", error)


def _check_kind(checkpoint: Path, lora: LoraSettings | None) -> None:
    """Weights are not resumed as adapters, nor the other way round."""
    holds = "adapters" if (checkpoint / CONFIG_NAME).exists() else "a whole model"
    if holds != ("a whole model" if lora is None else "adapters"):
        raise ValueError(
            f"learner.lora is {'not ' if lora is None else ''}set, but {checkpoint} holds {holds}; resume with the "
            "settings of before, or start a new run"
        )


def _load_head(critic: Critic | None, saved: dict[str, torch.Tensor] | None, checkpoint: Path) -> None:
    """Raises ValueError where the checkpoint has another head, or one that is not asked for, or none."""
    if (critic is None) != (saved is None):
        raise ValueError(
            f"learner.critic is {'not ' if critic is None else ''}set, but {checkpoint} holds "
            f"{'no value head' if saved is None else 'a value head'}; resume with the settings of before, or start a "
            "new run"
        )
    if critic is None or saved is None:
        return
    ours = {name: tuple(tensor.shape) for name, tensor in critic.head.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    if ours != theirs:
        raise ValueError(
            f"{checkpoint} holds a value head of {theirs}, and learner.critic (mlp_width) makes one of {ours}; resume "
            "with the settings of before, or start a new run"
        )
    critic.head.load_state_dict(saved)
