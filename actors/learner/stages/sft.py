"""The `sft` stage: next-token cross-entropy over what the assistant says in conversations, its tool calls included, and
over what was sampled in our own trajectories (supervised.py)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.actors.learner.documents import Document, DocumentSource, TokenDocument
from headrace.actors.learner.schedule import Schedule
from headrace.actors.learner.sequence import TrainSequence, masked_sequence
from headrace.actors.learner.stages.supervised import Supervised
from headrace.actors.rendering import Renderer, RendererFactory, check_renderer, conversation_ids, conversation_of


class Sft(Supervised):
    """See Supervised. source: conversations (JsonLines, Parquet, HubDataset with `field: null`) or TrajectoryDocuments.
    renderer: as of the environment; "auto" takes the model's chat template where it has one. messages_field,
    tools_field: of a record. A conversation that is longer than max_tokens is cut; one in which no assistant's token is
    left then is left out, and counted."""

    name = "sft"

    def __init__(
        self,
        *,
        source: DocumentSource,
        steps: int,
        renderer: str | RendererFactory = "auto",
        messages_field: str = "messages",
        tools_field: str = "tools",
        documents_per_step: int = 32,
        lr: float = 1e-5,
        lr_schedule: Schedule = "cosine",
        warmup_steps: int = 20,
        min_lr_ratio: float = 0.1,
        weight_decay: float = 0.0,
        clip_grad_norm: float = 1.0,
        max_tokens: int = 2048,
        held_out: DocumentSource | None = None,
        num_held_out: int = 256,
        held_out_every_steps: int = 100,
        checkpoint_every_steps: int = 500,
        seed: int | None = None,
    ) -> None:
        check_renderer(renderer)
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
        self.renderer = renderer
        self.messages_field = messages_field
        self.tools_field = tools_field


def conversation_encoder(
    renderer: Renderer, stage: Sft, *, vocab_size: int
) -> Callable[[Document], TrainSequence | None]:
    """Conversations, and tokens as they were sampled, as sequences of at most `stage.max_tokens` tokens. Raises
    ValueError for a token that the model does not have: the trajectories of another model."""

    def encode(document: Document) -> TrainSequence | None:
        if isinstance(document, TokenDocument):
            token_ids, mask = document.token_ids, document.loss_mask
            if len(token_ids) and int(token_ids.max()) >= vocab_size:
                raise ValueError(
                    f"a trajectory holds token {int(token_ids.max())}, the model has {vocab_size}; trajectories can "
                    "only be learned from by a model with the tokenizer of their run"
                )
        elif isinstance(document, str):
            raise ValueError("sft needs conversations, got a text; set sft.source.field: null for whole records")
        else:
            conversation = conversation_of(document, messages_field=stage.messages_field, tools_field=stage.tools_field)
            if not any(message.role == "assistant" for message in conversation.messages):
                return None
            ids, marks = conversation_ids(renderer, conversation)
            token_ids, mask = np.asarray(ids, dtype=np.int32), np.asarray(marks, dtype=np.bool_)
        token_ids, mask = token_ids[: stage.max_tokens], mask[: stage.max_tokens].copy()
        mask[:1] = False  # nothing predicts it
        return masked_sequence(token_ids, mask) if mask.any() else None

    return encode
