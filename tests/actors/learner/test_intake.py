"""The gate before the loss: missing rewards, small and dead groups, broken trajectories."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.advantages import Rloo
from headrace.actors.learner.intake import take_in
from headrace.actors.session import Group, Sampling


def advantages(intake):
    return {sid: s.advantage for sid, s in zip(intake.session_ids, intake.sequences, strict=True)}


def test_a_missing_reward_is_missing(make_group):
    """cases B41: [1, 0, None, 1] has the baseline of three; the third has no advantage and no token in the loss."""
    intake = take_in([make_group([1.0, 0.0, None, 1.0])], Rloo())
    assert advantages(intake) == {
        "g-0": pytest.approx(0.5),
        "g-1": pytest.approx(-1.0),
        "g-3": pytest.approx(0.5),
    }
    assert intake.refused == {"reward_missing": 1}
    assert sum(s.num_trained for s in intake.sequences) == 6
    assert intake.figures()["reward/mean"] == pytest.approx(2 / 3)


def test_a_group_without_rewards_is_passed_over(make_group):
    """cases B41: all None."""
    intake = take_in([make_group([None, None])], Rloo())
    assert intake.sequences == ()
    assert all(np.isfinite(v) for v in intake.figures().values())
    assert "reward/mean" not in intake.figures()


@pytest.mark.parametrize("rewards", [[1.0], [1.0, None], [float("nan"), 0.5]])
def test_one_reward_is_not_a_group(make_group, rewards):
    """cases B43: a sample standard deviation of one value is NaN; the group is skipped, no metric is NaN."""
    intake = take_in([make_group(rewards)], Rloo())
    assert intake.sequences == ()
    assert intake.refused["group_too_small"] == 1
    assert all(np.isfinite(v) for v in intake.figures().values())


@pytest.mark.parametrize(
    ("rewards", "kind"), [([0.1, 0.1, 0.1], "all_equal"), ([1.0] * 4, "all_pass"), ([0.0] * 4, "all_fail")]
)
def test_equal_rewards_have_exactly_no_advantage(make_group, rewards, kind):
    """cases B47: the flag goes by max − min."""
    intake = take_in([make_group(rewards)], Rloo())
    assert [s.advantage for s in intake.sequences] == [0.0] * len(rewards)
    assert intake.dead_groups == {kind: 1}


def test_groups_of_one_prompt_stay_apart(make_group):
    """cases B49: 16 zeros and 16 ones on the same prompt: all advantages 0, not 16/31 and 15/31."""
    groups = [make_group([0.0] * 16, "a"), make_group([1.0] * 16, "b")]
    intake = take_in(groups, Rloo())
    assert set(advantages(intake).values()) == {0.0}
    assert intake.dead_groups == {"all_fail": 1, "all_pass": 1}


def test_prompts_that_differ_are_one_group_by_id(make_trajectory):
    """cases B50: a unique path in each prompt does not split the group."""
    members = tuple(make_trajectory(float(i % 2), session_id=f"s{i}", prompt=(5, 60 + i, 7)) for i in range(4))
    intake = take_in([Group("g", members)], Rloo())
    assert sorted(s.advantage for s in intake.sequences) == pytest.approx([-2 / 3, -2 / 3, 2 / 3, 2 / 3])


@pytest.mark.parametrize("num_empty", [1, 3])
def test_empty_completions_are_refused(make_trajectory, num_empty):
    """cases B52: requests aborted in prefill return no tokens."""
    members = tuple(
        make_trajectory(float(i), session_id=f"s{i}", sampled=() if i < num_empty else (8, 9)) for i in range(3)
    )
    intake = take_in([Group("g", members)], Rloo())
    assert intake.refused["no_sampled_tokens"] == num_empty
    assert len(intake.sequences) == (2 if num_empty == 1 else 0)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (float("nan"), "logprob_not_finite"),
        (float("-inf"), "logprob_not_finite"),
        (float("inf"), "logprob_not_finite"),
        (0.5, "logprob_positive"),
    ],
)
def test_broken_logprobs_never_reach_the_loss(make_trajectory, bad, reason):
    """cases D80: NaN and infinities are refused by name."""
    members = tuple(
        make_trajectory(float(i), session_id=f"s{i}", logprobs=(-1.0, bad if i == 0 else -1.0)) for i in range(3)
    )
    intake = take_in([Group("g", members)], Rloo())
    assert intake.refused == {reason: 1}
    assert len(intake.sequences) == 2


@pytest.mark.parametrize(
    ("sampling", "reason"), [(Sampling(temperature=0.0), "greedy"), (Sampling(top_p=0.9), "top_p")]
)
def test_sampling_that_cannot_be_recomputed_is_refused(make_group, sampling, reason):
    intake = take_in([make_group([0.0, 1.0], sampling=sampling)], Rloo())
    assert intake.sequences == ()
    assert intake.refused[reason] == 2


REWARD = st.one_of(st.none(), st.floats(-5, 5), st.just(float("nan")), st.just(float("inf")))


@given(rewards=st.lists(REWARD, min_size=1, max_size=10))
def test_every_trajectory_is_trained_or_refused_and_all_is_finite(make_group, rewards):
    intake = take_in([make_group(rewards)], Rloo())
    assert len(intake.sequences) + intake.refused.total() == len(rewards)
    assert all(np.isfinite(s.advantage) for s in intake.sequences)
    assert all(np.isfinite(v) for v in intake.figures().values())
    assert abs(sum(s.advantage for s in intake.sequences)) < 1e-6
