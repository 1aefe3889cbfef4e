"""Passes over a batch: its micro-batches, and what is computed of every trained token without gradient, by sequence.

Called by the trainer and the workbench, in whichever thread computes. Changes no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from headrace.actors.learner.packing import MicroBatch, PackingSettings, input_length, pack, plan_micro_batches
from headrace.actors.learner.policy import TokenLogprobs
from headrace.actors.learner.sequence import TrainSequence


@torch.no_grad()
def sequence_logprobs(
    policy: TokenLogprobs, sequences: Sequence[TrainSequence], packing: PackingSettings
) -> list[np.ndarray]:
    """log pi of each sequence's trained tokens, float32, without gradients."""
    (logprobs,) = by_sequence(
        sequences, packing, lambda micro: [policy.token_logprobs(micro, temperatures(sequences, micro))]
    )
    return logprobs


def by_sequence(
    sequences: Sequence[TrainSequence], packing: PackingSettings, compute: Callable[[MicroBatch], list[torch.Tensor]]
) -> list[list[np.ndarray]]:
    """What `compute` gives of trained tokens, float[N] each, by sequence."""
    out: list[list[np.ndarray]] = []
    for micro in micro_batches(sequences, packing):
        for number, values_N in enumerate(compute(micro)):
            if number == len(out):
                out.append([np.zeros(0, dtype=np.float32)] * len(sequences))
            found_N = values_N.cpu().numpy()
            for owner, member in enumerate(micro.members):
                out[number][member] = found_N[micro.sequence_N == owner]
    return out


def micro_batches(
    sequences: Sequence[TrainSequence], packing: PackingSettings, part: Sequence[int] | None = None
) -> list[MicroBatch]:
    """Of all sequences, or of those that `part` names."""
    chosen = list(range(len(sequences))) if part is None else list(part)
    plan = plan_micro_batches(
        [input_length(sequences[i]) for i in chosen],
        tokens_per_row=packing.tokens_per_row,
        tokens_per_micro_batch=packing.tokens_per_micro_batch,
    )
    return [pack(sequences, [tuple(chosen[i] for i in row) for row in rows]) for rows in plan]


def temperatures(sequences: Sequence[TrainSequence], micro: MicroBatch) -> torch.Tensor:
    temperatures_S = torch.tensor([sequences[i].temperature for i in micro.members], dtype=torch.float32)
    return temperatures_S[torch.from_numpy(micro.sequence_N)]
