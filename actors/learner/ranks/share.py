"""Which rows of a batch each rank computes: shares of equal work, by what a transformer's pass over a row costs. Pure.

All ranks plan alike, and compute equally many micro-batches, since each is a meeting: who has fewer computes one again
that counts for nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.actors.learner.packing import Row
from headrace.actors.learner.ranks.protocol import Ranks


@dataclass(frozen=True, slots=True)
class Share:
    """The part of each batch that falls to one of `ranks`. hidden_size: the model's H."""

    ranks: Ranks
    hidden_size: int

    def of(self, rows: Sequence[Row], lengths: Sequence[int]) -> list[list[Row]]:
        """The rows of each rank."""
        costs = [row_cost([lengths[i] for i in row], self.hidden_size) for row in rows]
        return [[rows[index] for index in share] for share in share_rows(costs, self.ranks.size)]


def row_cost(lengths: Sequence[int], hidden_size: int) -> float:
    """Of the sequences of one row, in multiples of what one token costs besides attention, where a layer has 12 · H²
    weights and attention reads half of the tokens before: len · (1 + len / (12 · H)); J. Kaplan et al., arXiv
    2001.08361, table 1."""
    return sum(length * (1.0 + length / (12.0 * hidden_size)) for length in lengths)


def share_rows(costs: Sequence[float], num_ranks: int) -> list[list[int]]:
    """Indices of rows, by rank: the dearest first, each to whom has least (longest processing time first). In every
    share they stand in their order. Deterministic."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = heapq.heappop(loads)
        shares[rank].append(index)
        heapq.heappush(loads, (load + costs[index], rank))
    return [sorted(share) for share in shares]
