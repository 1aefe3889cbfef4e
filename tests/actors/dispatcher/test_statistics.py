"""Means, standard errors and pass@k against slow, obvious twins."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.dispatcher.statistics import clustered_mean, mean_pass_at_k, pass_at_k


@settings(deadline=None)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(case: tuple[int, int, int]) -> None:
    n, c, k = case
    outcomes = [True] * c + [False] * (n - c)
    subsets = [any(subset) for subset in combinations(outcomes, k)]
    assert pass_at_k(n, c, k) == pytest.approx(sum(subsets) / len(subsets))


def test_one_value_a_cluster_gives_the_usual_standard_error() -> None:
    values = [0.0, 1.0, 1.0, 0.5]
    estimate = clustered_mean([[v] for v in values])
    assert estimate is not None
    assert estimate.mean == pytest.approx(0.625)
    assert estimate.stderr == pytest.approx(np.std(values, ddof=1) / 2)


def test_samples_of_one_prompt_are_not_independent() -> None:
    clusters = [[1.0] * 8, [0.0] * 8, [1.0] * 8, [0.0] * 8]
    estimate = clustered_mean(clusters)
    assert estimate is not None
    assert estimate.n == 32
    assert estimate.stderr == pytest.approx(np.std([1, 0, 1, 0], ddof=1) / 2)


def test_what_is_missing_is_missing() -> None:
    assert clustered_mean([[], []]) is None
    estimate = clustered_mean([[1.0], [], [0.0]])
    assert estimate is not None
    assert (estimate.mean, estimate.n) == (0.5, 2)
    passed = mean_pass_at_k([[1.0, 0.0], [0.0]], 2, 1.0)
    assert passed is not None
    assert (passed.mean, passed.n) == (1.0, 1)
