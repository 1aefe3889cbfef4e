"""Weights are fixed by the whole batch, so that any split gives the same sum."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.aggregation import SequenceMean, TokenMean

COUNTS = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@given(COUNTS)
def test_a_constant_term_averages_to_itself(counts):
    num_tokens_S = np.array(counts)
    for rule in (TokenMean(), SequenceMean()):
        assert np.isclose((rule(num_tokens_S, np.arange(len(counts))) * num_tokens_S).sum(), 1.0)


def test_token_mean_is_not_the_mean_of_means():
    """cases B46: losses [1, 2, 3] and [4] average to 2.5 by token; 3.0 is the mean of the means."""
    losses = [np.array([1.0, 2.0, 3.0]), np.array([4.0])]
    counts, groups = np.array([3, 1]), np.array([0, 0])
    by_token = sum(w * part.sum() for w, part in zip(TokenMean()(counts, groups), losses, strict=True))
    by_sequence = sum(w * part.sum() for w, part in zip(SequenceMean()(counts, groups), losses, strict=True))
    assert by_token == 2.5
    assert by_sequence == 3.0
