"""GAE and V-trace against the sums of their papers, and what each becomes at the ends of its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import critic as twins

from headrace.actors.learner.credit import discounted_returns, gae, returns_to_go, token_rewards, vtrace, whiten

NUMBER = st.floats(-3, 3)
TOKENS = st.lists(st.tuples(NUMBER, NUMBER, st.floats(-4, 4)), min_size=1, max_size=15)
"""reward, value, log(pi_old / mu) of each token"""
SHARE = st.floats(0, 1)


def columns(tokens: list[tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rewards_T, values_T, log_ratios_T = (np.array(column) for column in zip(*tokens, strict=True))
    return rewards_T, values_T, np.exp(log_ratios_T)


def plain(rewards_T: np.ndarray, values_T: np.ndarray, ratios_T: np.ndarray, **given: Any) -> tuple[Any, Any]:
    return vtrace(
        rewards_T, values_T, ratios_T, **{"gamma": 1.0, "gae_lambda": 1.0, "rho_bar": 1.0, "c_bar": 1.0} | given
    )


def close(ours: np.ndarray, twin: list[float] | np.ndarray) -> None:
    np.testing.assert_allclose(ours, twin, rtol=0, atol=1e-9)


@settings(deadline=None)
@given(TOKENS, SHARE, SHARE)
def test_gae_equals_its_twins(tokens, gamma, gae_lambda):
    rewards_T, values_T, _ = columns(tokens)
    ours_T = gae(rewards_T, values_T, gamma=gamma, gae_lambda=gae_lambda)
    assert ours_T.dtype == np.float64
    close(ours_T, twins.gae(rewards_T, values_T, gamma, gae_lambda))
    close(ours_T, twins.gae_of_steps(rewards_T, values_T, gamma, gae_lambda))


@settings(deadline=None)
@given(TOKENS, SHARE)
def test_gae_is_the_return_minus_the_value_at_lambda_1_and_one_step_at_0(tokens, gamma):
    rewards_T, values_T, _ = columns(tokens)
    close(gae(rewards_T, values_T, gamma=gamma, gae_lambda=1.0), twins.returns(rewards_T, gamma) - values_T)
    close(gae(rewards_T, values_T, gamma=1.0, gae_lambda=1.0), returns_to_go(rewards_T) - values_T)
    one_step_T = rewards_T + gamma * np.append(values_T[1:], 0.0) - values_T
    close(gae(rewards_T, values_T, gamma=gamma, gae_lambda=0.0), one_step_T)
    close(discounted_returns(rewards_T, gamma), twins.returns(rewards_T, gamma))


@settings(deadline=None)
@given(TOKENS, SHARE, SHARE, st.floats(0.1, 1.0), st.floats(1.0, 3.0))
def test_vtrace_equals_its_twin(tokens, gamma, gae_lambda, c_bar, rho_bar):
    rewards_T, values_T, ratios_T = columns(tokens)
    advantages_T, targets_T = plain(
        rewards_T, values_T, ratios_T, gamma=gamma, gae_lambda=gae_lambda, c_bar=c_bar, rho_bar=rho_bar
    )
    twin = twins.vtrace_targets(rewards_T, values_T, ratios_T, gamma, gae_lambda, rho_bar, c_bar)
    close(targets_T, twin)
    close(advantages_T, twins.vtrace_advantages(rewards_T, values_T, twin, gamma))


@settings(deadline=None)
@given(TOKENS, SHARE)
def test_vtrace_on_policy_is_the_n_step_return(tokens, gamma):
    """IMPALA's remark 1, eq. 2: v_s = sum of gamma^(t−s) r_t to the end, whatever V says. Then advantages are those of
    GAE at lambda 1."""
    rewards_T, values_T, _ = columns(tokens)
    advantages_T, targets_T = plain(rewards_T, values_T, np.ones(len(tokens)), gamma=gamma)
    close(targets_T, twins.returns(rewards_T, gamma))
    close(advantages_T, twins.gae(rewards_T, values_T, gamma, 1.0))


@settings(deadline=None)
@given(TOKENS, SHARE, SHARE)
def test_vtrace_on_policy_is_td_lambda(tokens, gamma, gae_lambda):
    rewards_T, values_T, _ = columns(tokens)
    _, targets_T = plain(rewards_T, values_T, np.ones(len(tokens)), gamma=gamma, gae_lambda=gae_lambda)
    close(targets_T - values_T, twins.gae(rewards_T, values_T, gamma, gae_lambda))


@settings(deadline=None)
@given(TOKENS)
def test_beyond_a_token_that_the_policy_would_never_sample_nothing_is_carried_back(tokens):
    rewards_T, values_T, ratios_T = columns(tokens)
    ratios_T[-1] = 0.0
    before = plain(rewards_T, values_T, ratios_T)
    rewards_T[-1] += 100.0
    after = plain(rewards_T, values_T, ratios_T)
    np.testing.assert_array_equal(before[1], after[1])
    np.testing.assert_array_equal(before[0][:-1], after[0][:-1])


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5))
def test_whitened_numbers_have_mean_0_and_deviation_1(parts):
    arrays = [np.array(part) for part in parts]
    whole_N = np.concatenate(whiten(arrays))
    assert whole_N.mean() == pytest.approx(0, abs=1e-6)
    assert [len(part) for part in whiten(arrays)] == [len(part) for part in parts]
    if np.concatenate(arrays).std() > 1e-3:
        assert whole_N.std() == pytest.approx(1, rel=1e-4)


def test_equal_numbers_are_whitened_to_0():
    assert all((part == 0).all() for part in whiten([np.full(3, 0.25), np.full(5, 0.25)]))


def test_the_reward_comes_with_the_last_token_and_penalties_with_their_own():
    np.testing.assert_array_equal(token_rewards(2.0, np.array([0.5, -0.25, 1.0], dtype=np.float32)), [-0.5, 0.25, 1.0])
