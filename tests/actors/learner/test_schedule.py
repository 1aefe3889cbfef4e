"""The learning rate by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.schedule import AdamSettings, LearningRate


@given(st.integers(0, 20), st.integers(21, 200), st.floats(0, 1), st.sampled_from(["linear", "cosine"]))
def test_rises_then_falls_between_its_bounds(warmup, total, min_ratio, schedule):
    rates = [LearningRate(2.0, schedule, warmup, total, min_ratio).at(step) for step in range(total + 5)]
    assert all(0 < r <= 2.0 for r in rates[:warmup])
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[warmup] == 2.0
    assert rates[-1] == pytest.approx(2.0 * min_ratio)


def test_constant_after_warmup():
    rate = LearningRate(1.0, warmup_steps=4)
    assert [rate.at(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"peak": -1.0}, "lr"),
        ({"peak": float("nan")}, "lr"),
        ({"peak": 1.0, "schedule": "step"}, "lr_schedule"),
        ({"peak": 1.0, "schedule": "linear", "total_steps": 5, "warmup_steps": 5}, "max_steps"),
        ({"peak": 1.0, "min_ratio": 2.0}, "min_lr_ratio"),
    ],
)
def test_names_what_is_wrong(arguments, named):
    with pytest.raises(ValueError, match=named):
        LearningRate(**arguments)


def test_adam_settings_are_checked():
    with pytest.raises(ValueError, match="betas"):
        AdamSettings(betas=(1.0, 0.9))
    with pytest.raises(ValueError, match="eps"):
        AdamSettings(eps=0.0)
