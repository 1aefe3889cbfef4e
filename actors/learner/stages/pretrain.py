"""The `pretrain` stage: next-token cross-entropy over documents, end-of-document token included, and a held-out loss.

    consumes  texts of a DocumentSource, encoded as the tokenizer does by itself, one EOS behind each
    produces  trained weights (the policy is shared with the `rl` stage) and the metrics stream "pretrain"
    waits for nothing but its own worker thread
Its steps are its own: version 1, published after it, holds step 0 of the `rl` stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.documents import DocumentSource
from headrace.actors.learner.objectives import CrossEntropy
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.schedule import AdamSettings, LearningRate, Schedule
from headrace.actors.learner.sequence import TrainSequence, document_sequence

if TYPE_CHECKING:
    from headrace.actors.learner.policy import Policy

HELD_OUT_SEED_OFFSET = 1_000_003
"""Held-out documents come from the source's stream of this seed more; a finite source gives `held_out` instead."""


class Pretrain:
    """source: where documents come from. held_out: another source for the held-out loss; None takes other draws of
    `source`, which are held out only where documents are generated. max_tokens: longer documents are cut, without EOS.
    seed: of the documents' order; None takes the learner's."""

    def __init__(
        self,
        *,
        source: DocumentSource,
        steps: int,
        documents_per_step: int = 128,
        lr: float = 3e-3,
        lr_schedule: Schedule = "cosine",
        warmup_steps: int = 20,
        min_lr_ratio: float = 0.1,
        weight_decay: float = 0.0,
        clip_grad_norm: float = 1.0,
        max_tokens: int = 512,
        held_out: DocumentSource | None = None,
        num_held_out: int = 256,
        held_out_every_steps: int = 100,
        seed: int | None = None,
    ) -> None:
        for name, value in {
            "steps": steps,
            "documents_per_step": documents_per_step,
            "num_held_out": num_held_out,
        }.items():
            if value < 1:
                raise ValueError(
                    f"pretrain.{name} must be >= 1, got {value}; to leave the stage out set pretrain: null"
                )
        if max_tokens < 2 or held_out_every_steps < 1:
            raise ValueError(
                f"pretrain needs max_tokens >= 2 and held_out_every_steps >= 1, "
                f"got {max_tokens} and {held_out_every_steps}"
            )
        self.source = source
        self.held_out = held_out
        self.steps = steps
        self.documents_per_step = documents_per_step
        self.max_tokens = max_tokens
        self.num_held_out = num_held_out
        self.held_out_every_steps = held_out_every_steps
        self.seed = seed
        self.learning_rate = LearningRate(lr, lr_schedule, warmup_steps, steps, min_lr_ratio)
        self.adam = AdamSettings(weight_decay=weight_decay, clip_grad_norm=clip_grad_norm)


async def run_pretrain(
    stage: Pretrain,
    policy: Policy,
    tokenizer: Any,
    *,
    packing: PackingSettings,
    seed: int,
    run: Callable[..., Any],
    report: Callable[[int, dict[str, float]], None],
) -> float:
    """Train; returns the last held-out loss (nats a token). `run` runs a function in the worker thread, `report` sends
    metrics. The same seed trains on the same documents in the same order."""
    from headrace.actors.learner.optimizer import Optimizer
    from headrace.actors.learner.trainer import Trainer

    optimizer = Optimizer(policy.model.parameters(), stage.adam)
    trainer = Trainer(policy, optimizer, objective=CrossEntropy(), aggregation=TokenMean(), packing=packing)
    seed = seed if stage.seed is None else stage.seed
    documents = encoded(stage.source.documents(seed), tokenizer, stage.max_tokens)
    held_out_texts = (stage.held_out or stage.source).documents(seed + HELD_OUT_SEED_OFFSET)
    held_out = list(itertools.islice(encoded(held_out_texts, tokenizer, stage.max_tokens), stage.num_held_out))
    held_out_loss = float("nan")
    for step in range(stage.steps):
        batch = list(itertools.islice(documents, stage.documents_per_step))
        done = await run("pretrain", trainer.step, batch, stage.learning_rate.at(step))
        figures = {
            "loss": done.loss,
            "grad_norm": done.grad_norm,
            "lr": done.lr,
            "tokens": float(len(done.logprobs_N)),
            "steps_total": float(stage.steps),
            **{f"seconds/{name}": value for name, value in done.seconds.items()},
        }
        if (step + 1) % stage.held_out_every_steps == 0 or step + 1 == stage.steps:
            held_out_loss = figures["held_out_loss"] = await run("held_out", trainer.evaluate, held_out)
        report(step + 1, figures)
    return held_out_loss


def encoded(texts: Iterator[str], tokenizer: Any, max_tokens: int) -> Iterator[TrainSequence]:
    """Texts as sequences of 2 to `max_tokens` tokens, EOS at the end where the document ends within them."""
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ValueError(
            "the model's tokenizer names no eos_token; pre-training needs one to mark where a document ends"
        )
    for text in texts:
        ids = [int(i) for i in tokenizer.encode(text)]
        if ids[-1:] != [eos]:
            ids.append(eos)
        ids = ids[:max_tokens]
        if len(ids) >= 2:
            yield document_sequence(np.asarray(ids, dtype=np.int32))
