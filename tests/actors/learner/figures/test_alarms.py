"""When alarms begin and end, what is said of it, and what is kept over a restart."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.figures.alarms import MISMATCH_FIGURE, NAMES, NUM_FIRST_STEPS, Alarms

FIGURES = {
    "ess": ("ess/token", 0.5, 0.499),
    "truncated": ("intake/truncated_fraction", 0.05, 0.051),
    "errored": ("intake/errored_fraction", 0.05, 0.051),
    "masked": ("weight/masked_fraction", 0.5, 0.501),
}


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_said_once_when_it_begins_and_once_when_it_is_over(name, caplog):
    figure, good, bad = FIGURES[name]
    alarms = Alarms([])
    with caplog.at_level(logging.WARNING):
        seen = [
            alarms.update(step, {figure: value})[f"alarm/{name}"]
            for step, value in enumerate([good, bad, bad, good, good, float("nan")], start=1)
        ]
    assert seen == [0, 1, 1, 0, 0, 1]
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 3
    assert texts[0].startswith(f"alarm {name} from step 2: {figure} is {bad:.4g}, should be ")
    assert texts[1].startswith(f"alarm {name} is over at step 4")


def test_a_figure_that_is_absent_changes_nothing():
    alarms = Alarms([])
    alarms.update(1, {"ess/token": 0.1})
    assert alarms.update(2, {})["alarm/ess"] == 1.0


def test_the_mismatch_is_judged_by_the_median_of_the_first_steps():
    """One outlier among the first does not move it; before they are complete nothing is judged."""
    kept: list[float] = []
    alarms = Alarms(kept)
    for step in range(NUM_FIRST_STEPS):
        assert alarms.update(step, {MISMATCH_FIGURE: 50.0 if step == 7 else 1.0})["alarm/mismatch_kl"] == 0.0
    assert alarms.update(200, {})["alarm/mismatch_kl"] == 0.0
    assert alarms.update(201, {MISMATCH_FIGURE: 3.0})["alarm/mismatch_kl"] == 0.0
    assert alarms.update(202, {MISMATCH_FIGURE: 3.01})["alarm/mismatch_kl"] == 1.0
    assert len(kept) == NUM_FIRST_STEPS


def test_a_resumed_run_compares_with_its_own_beginning():
    assert Alarms([1.0] * NUM_FIRST_STEPS).update(500, {MISMATCH_FIGURE: 4.0})["alarm/mismatch_kl"] == 1.0


@given(st.lists(st.dictionaries(st.sampled_from([f for f, _, _ in FIGURES.values()]), st.floats()), max_size=20))
def test_every_alarm_is_0_or_1_for_any_figures(steps):
    alarms = Alarms([])
    for step, figures in enumerate(steps):
        reported = alarms.update(step, figures)
        assert set(reported) == {f"alarm/{name}" for name in NAMES}
        assert set(reported.values()) <= {0.0, 1.0}
