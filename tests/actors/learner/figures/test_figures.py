"""ESS, gaps and lags against slow twins and hand-made numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.figures.ess import sequence_ess, token_ess
from headrace.actors.learner.figures.lag import lag_figures, token_lags
from headrace.actors.learner.figures.mismatch import gap, gaps_by_age

RATIOS = st.lists(st.tuples(st.floats(-30, 30), st.integers(0, 4)), min_size=1, max_size=30)


def slow_ess(log_weights):
    weights = [math.exp(min(20.0, max(-20.0, x))) for x in log_weights]
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))


@given(RATIOS)
def test_ess_equals_the_slow_twin_and_stays_in_its_range(tokens):
    ratios = [t[0] for t in tokens]
    owners = [t[1] for t in tokens]
    sums: dict[int, float] = {}
    for ratio, owner in tokens:
        sums[owner] = sums.get(owner, 0.0) + ratio
    assert token_ess(np.array(ratios)) == pytest.approx(slow_ess(ratios), rel=1e-9)
    by_sequence = sequence_ess(np.array(ratios), np.array(owners))
    assert by_sequence == pytest.approx(slow_ess(sums.values()), rel=1e-9)
    assert 0 < by_sequence <= 1 + 1e-9


def test_equal_weights_are_a_full_sample():
    assert token_ess(np.full(7, -0.3)) == pytest.approx(1.0)


def test_one_heavy_token_counts_alone():
    assert token_ess(np.array([15.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25, rel=1e-3)


def test_gaps_are_kept_apart_by_age():
    ours, theirs = np.array([-1.0, -2.0, -3.0]), np.array([-1.1, -2.0, -5.0])
    same, older = gaps_by_age(ours, theirs, np.array([0, 0, 3]))
    assert (same.num_tokens, older.num_tokens) == (2, 1)
    assert same.mean_abs == pytest.approx(0.05)
    assert older.mean_abs == older.max_abs == 2.0
    assert older.kl == pytest.approx(math.exp(2.0) - 3.0)


def test_no_tokens_have_no_gap_and_no_nan():
    nothing = gap(np.zeros(0), np.zeros(0))
    assert (nothing.num_tokens, nothing.mean_abs, nothing.kl) == (0, 0.0, 0.0)


def test_lag_counts_steps_not_versions():
    """Version 3 holds step 8: at step 10 its tokens are 2 behind, however many versions were skipped."""
    lags = token_lags(np.array([3, 3, 1]), {1: 0, 3: 8}, 10)
    assert lags.tolist() == [2, 2, 10]
    figures = lag_figures(lags, np.array([0, 1, 1]))
    assert figures["lag/token_max"] == 10
    assert figures["lag/session_mean"] == 6.0


def test_an_unknown_version_is_named():
    with pytest.raises(KeyError, match="7"):
        token_lags(np.array([7]), {0: 0}, 3)
