"""The rules against their twins in float64, and what a split into micro-batches must not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins.comparing import aggregation_difference, difference
from twins.rows import AGGREGATIONS

from headrace.actors.learner.aggregation import Constant, PromptMean, SequenceMean, TokenMean

SETTINGS = settings(max_examples=60, deadline=None)
COUNTS = st.lists(st.integers(1, 50), min_size=1, max_size=20)
SEQUENCES = st.lists(st.floats(-5, 5), min_size=1, max_size=30)
BATCHES = st.lists(st.lists(SEQUENCES, min_size=1, max_size=5), min_size=1, max_size=5)


@pytest.mark.parametrize("name", AGGREGATIONS)
@SETTINGS
@given(batch=BATCHES)
def test_equals_its_twin(name: str, batch: list[list[list[float]]]) -> None:
    rule, twin = AGGREGATIONS[name]
    assert aggregation_difference(rule, twin, batch) < 1e-9


@pytest.mark.parametrize("name", AGGREGATIONS)
@SETTINGS
@given(batch=BATCHES)
def test_the_gradient_of_each_term_is_its_weight(name: str, batch: list[list[list[float]]]) -> None:
    """J is linear in the terms: one term more by 1 moves the twin by the weight of its sequence."""
    rule, twin = AGGREGATIONS[name]
    sequences = [sequence for group in batch for sequence in group]
    groups = np.array([number for number, group in enumerate(batch) for _ in group])
    weights_S = rule(np.array([len(sequence) for sequence in sequences]), groups)
    nothing = [[[0.0] * len(sequence) for sequence in group] for group in batch]
    moved = []
    for g, group in enumerate(batch):
        for s in range(len(group)):
            nothing[g][s][0] = 1.0
            moved.append(twin(nothing))
            nothing[g][s][0] = 0.0
    assert difference(weights_S, moved) < 1e-9


@SETTINGS
@given(COUNTS)
def test_a_constant_term_averages_to_itself(counts: list[int]) -> None:
    num_tokens_S = np.array(counts)
    for rule in (TokenMean(), SequenceMean(), PromptMean()):
        assert np.isclose((rule(num_tokens_S, np.arange(len(counts)) // 3) * num_tokens_S).sum(), 1.0)


def test_token_mean_is_not_the_mean_of_means() -> None:
    """cases B46: losses [1, 2, 3] and [4] average to 2.5 by token; 3.0 is the mean of the means."""
    losses = [np.array([1.0, 2.0, 3.0]), np.array([4.0])]
    counts, groups = np.array([3, 1]), np.array([0, 0])
    by_token = sum(w * part.sum() for w, part in zip(TokenMean()(counts, groups), losses, strict=True))
    by_sequence = sum(w * part.sum() for w, part in zip(SequenceMean()(counts, groups), losses, strict=True))
    assert by_token == 2.5
    assert by_sequence == 3.0


@SETTINGS
@given(COUNTS, st.integers(1, 1000))
def test_a_constant_divisor_looks_at_no_length(counts: list[int], tokens: int) -> None:
    weights_S = Constant(tokens=tokens)(np.array(counts), np.zeros(len(counts), dtype=np.int64))
    np.testing.assert_allclose(weights_S, 1 / (len(counts) * tokens), rtol=1e-15)


@SETTINGS
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(-5, 5)), min_size=1, max_size=20))
def test_every_prompt_weighs_the_same_whatever_its_number(drawn: list[tuple[int, int]]) -> None:
    """Groups need not be numbered from 0, nor stand together: a mini-batch has some of them."""
    counts, groups = (np.array(column) for column in zip(*drawn, strict=True))
    shares = PromptMean()(counts, groups) * counts
    for group in set(groups.tolist()):
        assert shares[groups == group].sum() == pytest.approx(1 / len(set(groups.tolist())))


def test_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"aggregation\.tokens must be >= 1, got 0"):
        Constant(tokens=0)
