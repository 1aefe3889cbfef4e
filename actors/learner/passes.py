"""Passes over a batch: its micro-batches, and what is computed of every trained token without gradient, by sequence.

Called by the trainer and the workbench, in whichever thread computes. Changes no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from headrace.actors.learner.packing import MicroBatch, PackingSettings, Row, group_rows, input_length, pack, plan_rows
from headrace.actors.learner.policy import TokenLogprobs
from headrace.actors.learner.ranks.share import Share
from headrace.actors.learner.sequence import TrainSequence


@torch.no_grad()
def sequence_logprobs(
    policy: TokenLogprobs, sequences: Sequence[TrainSequence], packing: PackingSettings, share: Share | None = None
) -> list[np.ndarray]:
    """log pi of each sequence's trained tokens, float32, without gradients."""

    def compute(micro: MicroBatch) -> list[torch.Tensor]:
        return [policy.token_logprobs(micro, temperatures(sequences, micro))]

    (logprobs,) = by_sequence(sequences, packing, compute, share)
    return logprobs


def by_sequence(
    sequences: Sequence[TrainSequence],
    packing: PackingSettings,
    compute: Callable[[MicroBatch], list[torch.Tensor]],
    share: Share | None = None,
) -> list[list[np.ndarray]]:
    """What `compute` gives of trained tokens, float[N] each, by sequence."""
    found: dict[int, list[np.ndarray]] = {}
    for micro in micro_batches(sequences, packing, share=share):
        values = [values_N.cpu().numpy() for values_N in compute(micro)]
        for owner, member in enumerate(() if micro.padding else micro.members):
            found[member] = [values_N[micro.sequence_N == owner] for values_N in values]
    if share is not None:
        found = {member: values for part in share.ranks.gather(found) for member, values in part.items()}
    return [list(values) for values in zip(*(found[i] for i in range(len(sequences))), strict=True)]


def micro_batches(
    sequences: Sequence[TrainSequence],
    packing: PackingSettings,
    part: Sequence[int] | None = None,
    share: Share | None = None,
) -> list[MicroBatch]:
    """Of all sequences, or of those that `part` names: those of this rank, as many as at any other."""
    chosen = list(range(len(sequences))) if part is None else list(part)
    lengths = [input_length(sequences[i]) for i in chosen]
    rows = plan_rows(lengths, packing.tokens_per_row)
    shares = [rows] if share is None else share.of(rows, lengths)
    plans = [group_rows(own, lengths, packing.tokens_per_micro_batch) for own in shares]
    plan = plans[0 if share is None else share.ranks.rank]
    micros = [_pack(sequences, chosen, rows_of) for rows_of in plan]
    again = replace(_pack(sequences, chosen, rows[-1:]), padding=True)  # the shortest
    return micros + [again] * (max(map(len, plans)) - len(micros))


def _pack(sequences: Sequence[TrainSequence], chosen: Sequence[int], rows: Sequence[Row]) -> MicroBatch:
    return pack(sequences, [tuple(chosen[i] for i in row) for row in rows])


def temperatures(sequences: Sequence[TrainSequence], micro: MicroBatch) -> torch.Tensor:
    temperatures_S = torch.tensor([sequences[i].temperature for i in micro.members], dtype=torch.float32)
    return temperatures_S[torch.from_numpy(micro.sequence_N)]
