"""The aggregations of docs/algorithms/aggregation.md: from the terms of every token to J. A batch is a list of groups,
a group a list of sequences, a sequence the list of its tokens' terms."""

from __future__ import annotations

import math

Batch = list[list[list[float]]]


def token_mean(batch: Batch) -> float:
    terms = [term for group in batch for sequence in group for term in sequence]
    return math.fsum(terms) / len(terms)


def sequence_mean(batch: Batch) -> float:
    means = [math.fsum(sequence) / len(sequence) for group in batch for sequence in group]
    return math.fsum(means) / len(means)


def constant(batch: Batch, tokens: int) -> float:
    sums = [math.fsum(sequence) / tokens for group in batch for sequence in group]
    return math.fsum(sums) / len(sums)


def prompt_mean(batch: Batch) -> float:
    means = []
    for group in batch:
        terms = [term for sequence in group for term in sequence]
        means.append(math.fsum(terms) / len(terms))
    return math.fsum(means) / len(means)
