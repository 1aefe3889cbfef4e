"""The rules against slow twins, and what holds for every group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.advantages import BatchRewards, GroupMean, Grpo, Rloo

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def slow_rloo(rewards):
    return [r - sum(rewards[:i] + rewards[i + 1 :]) / (len(rewards) - 1) for i, r in enumerate(rewards)]


def slow_group_mean(rewards):
    return [r - sum(rewards) / len(rewards) for r in rewards]


def slow_grpo(rewards):
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    return [(r - mean) / (std + 1e-6) for r in rewards]


def one_group(rewards):
    return BatchRewards(np.array(rewards), np.zeros(len(rewards), dtype=np.int64), ("task",) * len(rewards))


RULES = [(Rloo(), slow_rloo), (GroupMean(), slow_group_mean), (Grpo(), slow_grpo)]


@pytest.mark.parametrize(("rule", "twin"), RULES)
@given(rewards=REWARDS)
def test_equals_the_slow_twin(rule, twin, rewards):
    np.testing.assert_allclose(rule(one_group(rewards)), twin(rewards), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rule", "twin"), RULES)
@given(rewards=REWARDS)
def test_sums_to_zero_and_keeps_the_order(rule, twin, rewards):
    advantages = rule(one_group(rewards))
    assert abs(advantages.sum()) < 1e-4
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(advantages[order]) >= -1e-9).all()


@pytest.mark.parametrize(("rule", "twin"), RULES)
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1.0, 1.0, 1.0, 1.0]])
def test_equal_rewards_have_no_advantage(rule, twin, rewards):
    """cases B47: a division by the bare standard deviation gives −0.816 for [0.1, 0.1, 0.1]."""
    assert (np.abs(rule(one_group(rewards))) < 1e-6).all()
