"""The `pretrain` stage: next-token cross-entropy over texts, end-of-document token included (supervised.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.actors.learner.documents import Document, DocumentSource, TokenDocument
from headrace.actors.learner.schedule import Schedule
from headrace.actors.learner.sequence import TrainSequence, document_sequence
from headrace.actors.learner.stages.supervised import Supervised


class Pretrain(Supervised):
    """See Supervised. Texts are encoded as the tokenizer does by itself, one EOS behind each; where one is longer than
    max_tokens it is cut, without EOS."""

    name = "pretrain"

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
        checkpoint_every_steps: int = 500,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            source=source,
            steps=steps,
            documents_per_step=documents_per_step,
            lr=lr,
            lr_schedule=lr_schedule,
            warmup_steps=warmup_steps,
            min_lr_ratio=min_lr_ratio,
            weight_decay=weight_decay,
            clip_grad_norm=clip_grad_norm,
            max_tokens=max_tokens,
            held_out=held_out,
            num_held_out=num_held_out,
            held_out_every_steps=held_out_every_steps,
            checkpoint_every_steps=checkpoint_every_steps,
            seed=seed,
        )


def text_encoder(tokenizer: Any, max_tokens: int) -> Callable[[Document], TrainSequence | None]:
    """Texts as sequences of 2 to `max_tokens` tokens, EOS at the end where the document ends within them."""
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ValueError(
            "the model's tokenizer names no eos_token; pre-training needs one to mark where a document ends"
        )

    def encode(document: Document) -> TrainSequence | None:
        if isinstance(document, TokenDocument):
            ids = [int(i) for i in document.token_ids]
        elif isinstance(document, str):
            ids = [int(i) for i in tokenizer.encode(document)]
            if ids[-1:] != [eos]:
                ids.append(eos)
        else:
            raise ValueError(
                f"pretrain needs texts, got a record with {sorted(document)}; set pretrain.source.field to the one "
                "that holds the text, or use learner.sft for conversations"
            )
        ids = ids[:max_tokens]
        return document_sequence(np.asarray(ids, dtype=np.int32)) if len(ids) >= 2 else None

    return encode
