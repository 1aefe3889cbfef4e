"""What `pretrain` and `sft` share: next-token cross-entropy over documents, steps of their own, and a held-out loss.

    consumes  documents of a source, each as a sequence of tokens of which some are trained
    produces  trained weights (the policy is shared with the `rl` stage) and a metrics stream
    waits for nothing but its own worker thread
The steps are the stage's own: version 1, published after the last such stage, holds step 0 of the `rl` stage.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.actors.learner.documents import Corpus, Document, DocumentSource, cursor_of
from headrace.actors.learner.schedule import AdamSettings, LearningRate, Schedule
from headrace.actors.learner.sequence import TrainSequence

if TYPE_CHECKING:
    from headrace.actors.learner.trainer import Trainer

logger = logging.getLogger(__name__)

HELD_OUT_SEED_OFFSET = 1_000_003
"""Held-out documents of a source that generates them come from its stream of this seed more."""

Encode = Callable[[Document], TrainSequence | None]
"""A document as a sequence; None where nothing of it can be trained."""


class Supervised:
    """Settings of such a stage. source: where documents come from. held_out: another source for the held-out loss;
    None takes what `source` holds out (`held_out_fraction` of a corpus), or, of a source that generates documents,
    other draws. max_tokens: longer documents are cut. checkpoint_every_steps: what a learner that dies loses of the
    stage at most; one at its end too; 0: none. seed: of the documents' order; None takes the learner's."""

    name: str
    """of the key, and of the metrics stream"""

    def __init__(
        self,
        *,
        source: DocumentSource,
        steps: int,
        documents_per_step: int,
        lr: float,
        lr_schedule: Schedule,
        warmup_steps: int,
        min_lr_ratio: float,
        weight_decay: float,
        clip_grad_norm: float,
        max_tokens: int,
        held_out: DocumentSource | None,
        num_held_out: int,
        held_out_every_steps: int,
        checkpoint_every_steps: int,
        seed: int | None,
    ) -> None:
        for key, value, least in (
            ("steps", steps, 1),
            ("documents_per_step", documents_per_step, 1),
            ("num_held_out", num_held_out, 1),
            ("max_tokens", max_tokens, 2),
            ("held_out_every_steps", held_out_every_steps, 1),
            ("checkpoint_every_steps", checkpoint_every_steps, 0),
        ):
            if value < least:
                way_out = f"to leave the stage out set {self.name}: null" if least else "0 makes none"
                raise ValueError(f"{self.name}.{key} must be >= {least}, got {value}; {way_out}")
        self.source = source
        self.held_out = held_out
        self.steps = steps
        self.documents_per_step = documents_per_step
        self.max_tokens = max_tokens
        self.num_held_out = num_held_out
        self.held_out_every_steps = held_out_every_steps
        self.checkpoint_every_steps = checkpoint_every_steps
        self.seed = seed
        self.learning_rate = LearningRate(lr, lr_schedule, warmup_steps, steps, min_lr_ratio)
        self.adam = AdamSettings(weight_decay=weight_decay, clip_grad_norm=clip_grad_norm)

    def held_out_documents(self, seed: int) -> Iterable[Document]:
        """Documents that training never sees; may be endless, or none."""
        if self.held_out is not None:
            return self.held_out.documents(seed)
        if isinstance(self.source, Corpus):
            return self.source.held_out()
        return self.source.documents(seed + HELD_OUT_SEED_OFFSET)


@dataclass(frozen=True, slots=True)
class StagePlace:
    """How far a stage is: `step` steps done, `documents` the state of their cursor behind the last one trained."""

    step: int
    documents: dict[str, Any]


class Encoded:
    """Sequences of the documents of a cursor, whose place stays exact: nothing is read ahead. `num_left_out`: documents
    in which nothing could be trained."""

    def __init__(self, documents: Iterable[Document], encode: Encode) -> None:
        self._documents = iter(documents)
        self._encode = encode
        self.num_left_out = 0

    def __iter__(self) -> Iterator[TrainSequence]:
        return self

    def __next__(self) -> TrainSequence:
        while True:
            sequence = self._encode(next(self._documents))
            if sequence is not None:
                return sequence
            self.num_left_out += 1


async def run_supervised(
    stage: Supervised,
    trainer: Trainer,
    encode: Encode,
    *,
    seed: int,
    run: Callable[..., Any],
    report: Callable[[int, dict[str, float]], None],
    start: StagePlace | None = None,
    save: Callable[[StagePlace], Awaitable[None]] | None = None,
) -> float:
    """Train; returns the last held-out loss (nats a token; NaN where nothing is held out). `trainer`: of cross-entropy,
    with the stage's own optimizer. `run` runs a function in the worker thread, `report` sends metrics. The same seed
    trains on the same documents in the same order. `start`: where to go on; None: at the beginning. `save` is awaited
    where a checkpoint is due."""
    seed = seed if stage.seed is None else stage.seed
    cursor = cursor_of(stage.source, seed)
    if start is not None:
        await run("read", cursor.load_state_dict, start.documents)
    documents = Encoded(cursor, encode)
    held_out = await run("read", _first, Encoded(stage.held_out_documents(seed), encode), stage.num_held_out)
    if not held_out:
        logger.warning("%s: nothing is held out, so no held-out loss; set %s.held_out", stage.name, stage.name)
    held_out_loss = math.nan
    for step in range(0 if start is None else start.step, stage.steps):
        batch = await run("read", _first, documents, stage.documents_per_step)
        if not batch:
            raise ValueError(f"{stage.name}.source ended after {step} steps; a source of documents must not end")
        done = await run(stage.name, trainer.step, batch, stage.learning_rate.at(step))
        figures = {
            "loss": done.loss,
            "grad_norm": done.grad_norm,
            "lr": done.lr,
            "tokens": float(len(done.logprobs_N)),
            "left_out": float(documents.num_left_out),
            "steps_total": float(stage.steps),
            **{f"seconds/{name}": value for name, value in done.seconds.items()},
        }
        if held_out and ((step + 1) % stage.held_out_every_steps == 0 or step + 1 == stage.steps):
            held_out_loss = figures["held_out_loss"] = await run("held_out", trainer.evaluate, held_out)
            figures["perplexity"] = math.exp(min(held_out_loss, 700.0))
        report(step + 1, figures)
        every = stage.checkpoint_every_steps
        if save is not None and every and ((step + 1) % every == 0 or step + 1 == stage.steps):
            await save(StagePlace(step + 1, cursor.state_dict()))
    return held_out_loss


def _first(sequences: Iterator[TrainSequence], num: int) -> list[TrainSequence]:
    return list(itertools.islice(sequences, num))
