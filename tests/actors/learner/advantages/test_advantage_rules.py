"""The rules against their twins in float64, and what holds for every batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins.comparing import advantage_difference
from twins.rows import ADVANTAGES

from headrace.actors.learner.advantages import Advantage, Batch, BatchRewards, GroupMean, Grpo, Rloo, RunningMean

SETTINGS = settings(max_examples=60, deadline=None)
REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
BATCHES = st.lists(
    st.tuples(st.sampled_from(["easy", "hard"]), REWARDS).map(lambda drawn: [(drawn[0], r) for r in drawn[1]]),
    min_size=1,
    max_size=5,
)
BY_GROUP = [Rloo(), GroupMean(), Grpo()]
CENTRED = [*BY_GROUP, Batch()]


def batch_of(*groups: list[float], classes: tuple[str, ...] | None = None) -> BatchRewards:
    names = classes or ("task",) * len(groups)
    return BatchRewards(
        rewards_S=np.array([reward for group in groups for reward in group], dtype=np.float64),
        group_S=np.array([number for number, group in enumerate(groups) for _ in group], dtype=np.int64),
        classes_S=tuple(name for name, group in zip(names, groups, strict=True) for _ in group),
    )


@pytest.mark.parametrize("name", ADVANTAGES)
@SETTINGS
@given(batches=st.lists(BATCHES, min_size=1, max_size=4))
def test_equals_its_twin(name: str, batches: list[list[list[tuple[str, float]]]]) -> None:
    """Over batches in a row: some rules keep what they have seen. A deviation that is rounding alone is divided by an
    epsilon and is not compared: the rules promise nothing of it but that it is small."""
    make_rule, make_twin = ADVANTAGES[name]
    rule, twin = make_rule(), make_twin()
    for batch in batches:
        rewards = [[reward for _, reward in group] for group in batch]
        if all(max(group) == min(group) or max(group) - min(group) > 1e-3 for group in rewards):
            assert advantage_difference(rule, twin, batch) < 1e-9


@pytest.mark.parametrize("rule", CENTRED)
@SETTINGS
@given(groups=st.lists(REWARDS, min_size=1, max_size=4))
def test_sums_to_zero_and_keeps_the_order_in_each_group(rule: Advantage, groups: list[list[float]]) -> None:
    batch = batch_of(*groups)
    advantages = rule(batch)
    assert np.isfinite(advantages).all()
    for number in range(len(groups)):
        mine = batch.group_S == number
        assert abs(advantages[mine].sum()) < 1e-4
        order = np.argsort(batch.rewards_S[mine], kind="stable")
        assert (np.diff(advantages[mine][order]) >= -1e-9).all()


@pytest.mark.parametrize("rule", CENTRED)
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [1.0, 1.0, 1.0, 1.0]])
def test_equal_rewards_have_no_advantage(rule: Advantage, rewards: list[float]) -> None:
    """cases B47: a division by the bare standard deviation gives −0.816 for [0.1, 0.1, 0.1]."""
    assert (np.abs(rule(batch_of(rewards))) < 1e-6).all()


@pytest.mark.parametrize("rule", BY_GROUP)
def test_groups_do_not_mix(rule: Advantage) -> None:
    """cases B49: two groups with one prompt, all zeros and all ones, have no advantage: 16/31 must not appear."""
    assert (rule(batch_of([0.0] * 16, [1.0] * 16)) == 0).all()
    alone = np.concatenate([rule(batch_of(group)) for group in ([1.0, 0.0], [3.0, 5.0, 4.0])])
    np.testing.assert_array_equal(rule(batch_of([1.0, 0.0], [3.0, 5.0, 4.0])), alone)


def test_batch_scales_all_groups_alike() -> None:
    """grpo gives a lone success in either group the same advantage; here it stays as far above its group as it was."""
    rewards = batch_of([1.0, 0.0, 0.0, 0.0], [10.0, 0.0, 0.0, 0.0])
    advantages = Batch()(rewards)
    assert advantages[4] == pytest.approx(10 * advantages[0])
    assert advantages.std() == pytest.approx(1.0, abs=1e-5)
    by_group = Grpo()(rewards)
    assert by_group[4] == pytest.approx(by_group[0], rel=1e-5)


def test_batch_of_one_dead_group_among_others() -> None:
    advantages = Batch()(batch_of([0.7, 0.7, 0.7], [1.0, 0.0]))
    assert (np.abs(advantages[:3]) < 1e-12).all()
    assert advantages[3] == -advantages[4] > 0


def test_running_mean_is_a_baseline_of_the_past_by_class() -> None:
    rule = RunningMean(decay=0.5)
    assert rule.min_rewards == 1
    first = rule(batch_of([1.0], [0.0], [4.0], classes=("easy", "easy", "hard")))
    assert first.tolist() == [0.5, -0.5, 0.0]  # a new class begins with the mean of its first batch
    assert rule(batch_of([1.0], classes=("easy",))).tolist() == [0.5]  # 0.5 still: a reward is not in its own baseline
    assert rule(batch_of([1.0], [4.0], classes=("easy", "hard"))).tolist() == [0.25, 0.0]


def test_running_mean_goes_on_where_it_was() -> None:
    rule, resumed = RunningMean(), RunningMean()
    rule(batch_of([1.0], [0.0], classes=("easy", "hard")))
    resumed.load_state_dict(rule.state_dict())
    batch = batch_of([0.3], [0.6], classes=("easy", "hard"))
    np.testing.assert_array_equal(resumed(batch), rule(batch))
    assert resumed.state_dict() == rule.state_dict()


def test_names_what_is_wrong() -> None:
    for rule in (Batch, Grpo):
        with pytest.raises(ValueError, match=r"advantage\.epsilon must be > 0, got 0"):
            rule(epsilon=0)
    for decay in (1.0, -0.1):
        with pytest.raises(ValueError, match=r"advantage\.decay must be in \[0, 1\)"):
            RunningMean(decay=decay)
