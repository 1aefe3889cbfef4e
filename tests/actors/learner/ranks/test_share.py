"""What falls to which rank: every row once, work that is nearly equal, and equally many micro-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.passes import by_sequence, micro_batches
from headrace.actors.learner.ranks.share import Share, row_cost, share_rows


class Rank:
    """As one of `size` ranks that have not met."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.files = rank, size, None

    def gather(self, value: Any) -> list[Any]:
        return [value]


@given(st.lists(st.floats(0.1, 1e6), max_size=60), st.integers(1, 9))
def test_every_row_once_and_no_rank_has_more_than_it_must(costs: list[float], num_ranks: int) -> None:
    shares = share_rows(costs, num_ranks)
    assert len(shares) == num_ranks
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(costs[index] for index in share) for share in shares]
    # R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969, for any order: the mean, and one row more
    assert max(loads) <= sum(costs) / num_ranks + max(costs, default=0.0) * (1 + 1e-9)


def test_the_cost_of_attention_grows_with_the_square() -> None:
    assert row_cost([12 * 64], hidden_size=64) == pytest.approx(2 * 12 * 64)
    assert row_cost([100, 100], 64) < row_cost([200], 64) < 2.1 * row_cost([100, 100], 64)


@pytest.mark.parametrize("tokens_per_row", [0, 40])
@pytest.mark.parametrize("num_sequences", [1, 2, 5, 23])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_ranks_compute_all_sequences_once_in_equally_many_passes(
    size: int, num_sequences: int, tokens_per_row: int, make_sequence: Any
) -> None:
    sequences = [make_sequence(seed, 6 + 3 * seed % 40) for seed in range(num_sequences)]
    packing = PackingSettings(tokens_per_row=tokens_per_row, tokens_per_micro_batch=60)
    plans = [micro_batches(sequences, packing, share=Share(Rank(rank, size), 32)) for rank in range(size)]
    assert len({len(plan) for plan in plans}) == 1
    real = [micro for plan in plans for micro in plan if not micro.padding]
    assert sorted(member for micro in real for member in micro.members) == list(range(num_sequences))
    alone = micro_batches(sequences, packing)
    assert sum(micro.input_ids_RL.size for micro in real) <= 2 * sum(micro.input_ids_RL.size for micro in alone)


def test_what_ranks_found_is_put_together_by_sequence(make_sequence: Any) -> None:
    import torch

    sequences = [make_sequence(seed, 8 + seed) for seed in range(5)]
    packing = PackingSettings(tokens_per_micro_batch=20)

    def targets(micro: Any) -> list[torch.Tensor]:
        return [torch.from_numpy(micro.targets_N).float()]

    class Met(Rank):
        def gather(self, value: Any) -> list[Any]:
            other = Share(Rank(1, 2), 32)
            micros = [micro for micro in micro_batches(sequences, packing, share=other) if not micro.padding]
            theirs = {
                member: [micro.targets_N[micro.sequence_N == owner].astype(np.float32)]
                for micro in micros
                for owner, member in enumerate(micro.members)
            }
            return [value, theirs]

    (found,) = by_sequence(sequences, packing, targets, Share(Met(0, 2), 32))
    for sequence, own in zip(sequences, found, strict=True):
        assert own.tolist() == sequence.token_ids[sequence.loss_mask].tolist()
