"""How sequences become rows and rows become micro-batches. Pure planning plus the arrays of one micro-batch.

A row holds whole sequences end to end; positions restart at each, by which the model knows the borders: attention is
causal inside a sequence and nowhere else (block-diagonal). With one sequence a row (`tokens_per_row=0`) rows are padded
on the right, where causality alone hides the padding and no mask is built: quickest for sequences of similar length, as
rows of one micro-batch have similar widths. Packed rows win where lengths differ widely and micro-batches are small.
The last token of a sequence is never an input: nothing after it is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.actors.learner.sequence import TrainSequence

Row = tuple[int, ...]
"""Indices of the sequences that lie in one row, in order."""


@dataclass(frozen=True, slots=True)
class PackingSettings:
    """tokens_per_row 0: one sequence a row, right-padded beside others of its length. tokens_per_micro_batch bounds
    memory: positions of one forward pass, padding included."""

    tokens_per_row: int = 0
    tokens_per_micro_batch: int = 2048

    def __post_init__(self) -> None:
        if self.tokens_per_row < 0:
            raise ValueError(f"packing.tokens_per_row must be >= 0, got {self.tokens_per_row}; 0 packs nothing")
        if self.tokens_per_micro_batch < 1:
            raise ValueError(f"packing.tokens_per_micro_batch must be >= 1, got {self.tokens_per_micro_batch}")


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """R rows of L positions. N trained tokens, in the order of `members`, each sequence's in its own order.

    input_ids_RL:    int64, 0 where nothing lies
    positions_RL:    int64, from 0 at each sequence's start, counting on over padding
    predictors_N:    int64, flat index (row · L + column) of the position whose output predicts the trained token
    targets_N:       int64, the trained token
    sequence_N:      int64, its sequence: an index into `members`
    members:         indices of the S sequences in the batch
    padding:         computed only because every rank of the learner computes as many: it counts for nothing
    """

    input_ids_RL: np.ndarray
    positions_RL: np.ndarray
    predictors_N: np.ndarray
    targets_N: np.ndarray
    sequence_N: np.ndarray
    members: tuple[int, ...]
    padding: bool = False


def plan_rows(lengths: Sequence[int], tokens_per_row: int) -> list[Row]:
    """First-fit-decreasing into rows of at most `tokens_per_row` tokens; 0 means one sequence a row. A sequence that is
    longer than a row gets one of its own. Deterministic; the longest rows come first."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    if tokens_per_row == 0:
        return [(i,) for i in order]
    rows: list[list[int]] = []
    room: list[int] = []
    for i in order:
        for r, free in enumerate(room):
            if lengths[i] <= free:
                rows[r].append(i)
                room[r] -= lengths[i]
                break
        else:
            rows.append([i])
            room.append(tokens_per_row - lengths[i])
    filled = sorted(rows, key=lambda row: (-sum(lengths[i] for i in row), row))
    return [tuple(row) for row in filled]


def plan_micro_batches(lengths: Sequence[int], *, tokens_per_row: int, tokens_per_micro_batch: int) -> list[list[Row]]:
    """See plan_rows and group_rows."""
    return group_rows(plan_rows(lengths, tokens_per_row), lengths, tokens_per_micro_batch)


def group_rows(rows: Iterable[Row], lengths: Sequence[int], tokens_per_micro_batch: int) -> list[list[Row]]:
    """Rows, the longest first, in micro-batches of at most `tokens_per_micro_batch` positions, padding included; a row
    that is larger stands alone. Rows of similar width stand together, so that little is padding."""
    batches: list[list[Row]] = []
    width = 0
    for row in rows:
        if batches and (len(batches[-1]) + 1) * width <= tokens_per_micro_batch:
            batches[-1].append(row)
        else:
            width = sum(lengths[i] for i in row)
            batches.append([row])
    return batches


def pack(sequences: Sequence[TrainSequence], rows: Sequence[Row]) -> MicroBatch:
    """The arrays of one micro-batch."""
    width = max(sum(input_length(sequences[i]) for i in row) for row in rows)
    shape = (len(rows), width)
    input_ids_RL = np.zeros(shape, dtype=np.int64)
    positions_RL = np.zeros(shape, dtype=np.int64)
    members = tuple(i for row in rows for i in row)
    predictors: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    number = 0
    owners: list[np.ndarray] = []
    for r, row in enumerate(rows):
        start = 0
        for i in row:
            sequence = sequences[i]
            end = start + input_length(sequence)
            input_ids_RL[r, start:end] = sequence.token_ids[: end - start]
            positions_RL[r, start:] = np.arange(width - start)
            trained = np.flatnonzero(sequence.loss_mask)
            predictors.append(r * width + start + trained - 1)
            targets.append(sequence.token_ids[trained].astype(np.int64))
            owners.append(np.full(len(trained), number, dtype=np.int64))
            number += 1
            start = end
    return MicroBatch(
        input_ids_RL=input_ids_RL,
        positions_RL=positions_RL,
        predictors_N=np.concatenate(predictors),
        targets_N=np.concatenate(targets),
        sequence_N=np.concatenate(owners),
        members=members,
    )


def input_length(sequence: TrainSequence) -> int:
    """Tokens that the model must read: up to the one that predicts the last trained token."""
    return int(np.flatnonzero(sequence.loss_mask)[-1])
