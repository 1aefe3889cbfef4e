"""Versions of a real model as a learner would publish them: AdamW on float32 masters, gradients of real text, a flat
bfloat16 buffer after each step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.schedule import AdamSettings
from headrace.transport.weights import Manifest
from headrace.transport.weights.layout import build_layout, flatten_into, model_tensors

DTYPE = "bfloat16"
BUCKET_BYTES = 4 << 20


class Training:
    """model_folder: of a causal language model. text_files: what it is trained on, `sequences` of `tokens` a step."""

    def __init__(self, model_folder: Path, text_files: list[Path], *, sequences: int, tokens: int) -> None:
        self._folder = model_folder
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
        ids = tokenizer("\n\n".join(path.read_text() for path in text_files), return_tensors="pt").input_ids[0]
        num = len(ids) // (sequences * tokens)
        self._batches = ids[: num * sequences * tokens].view(num, sequences, tokens)

    def versions(self, lr: float, *, warm_up: int, num: int) -> Iterator[tuple[Manifest, np.ndarray]]:
        """`num` consecutive versions, one a step, after `warm_up` steps that fill Adam's moments.

        The masters begin anywhere within the cells of the model's bfloat16 values, as after a long run: upon the values
        themselves a small learning rate would seem to change nothing for many steps."""
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                ulp = torch.ldexp(torch.ones_like(parameter), torch.frexp(parameter)[1] - 8)
                parameter.add_(ulp * (torch.rand_like(parameter) - 0.5))
        optimizer = Optimizer(model.parameters(), AdamSettings())
        for step in range(warm_up + num):
            batch = self._batches[step % len(self._batches)]
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step(lr)
            if step >= warm_up:
                yield flat(model, step)


def flat(model: torch.nn.Module, step: int) -> tuple[Manifest, np.ndarray]:
    """A manifest without checksums, and its bytes: uint8[nbytes]."""
    tensors = model_tensors(model)
    layout = build_layout(tensors, dtype=DTYPE, bucket_bytes=BUCKET_BYTES)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    flatten_into(buffer, tensors, layout)
    nothing = tuple(0 for _ in layout.bounds)
    return layout.manifest(version=0, step=step, transport="", location="", checksums=nothing), buffer.numpy()
