"""Restarts that lead nowhere end the run; those of a run that gets on do not."""

from __future__ import annotations

import pytest

from headrace.launch.settings import SupervisorSettings
from headrace.launch.stagnation import Stagnation
from headrace.launch.supervisor_state import Exit, RestartPolicy


def test_the_same_failure_time_and_again_is_told_with_its_first_lines() -> None:
    run = Stagnation(max_restarts=2)
    run.stepped("train", 1)
    assert run.restarted("learner-0", Exit(1, last_lines="PublicationRefused: no room")) is None
    assert run.restarted("learner-0", Exit(1)) is None
    found = run.restarted("learner-0", Exit(-9))
    assert found is not None
    assert (found.child, found.cause) == ("learner-0", "learner-0")
    assert found.last_lines == "PublicationRefused: no room"
    assert "3 times without a training step" in found.reason
    assert "launch.max_restarts_without_step=2" in found.reason


def test_a_step_that_is_made_again_is_no_progress() -> None:
    run = Stagnation(max_restarts=1)
    run.stepped("train", 7)
    assert run.restarted("learner-0", Exit(1)) is None
    for step in (5, 6, 7):  # from its checkpoint
        run.stepped("train", step)
    assert run.restarted("learner-0", Exit(1)) is not None


def test_a_further_step_forgives() -> None:
    run = Stagnation(max_restarts=1)
    for step in range(1, 20):
        run.stepped("train", step)
        assert run.restarted("generator-0", Exit(-9)) is None


def test_stages_are_counted_apart() -> None:
    run = Stagnation(max_restarts=1)
    run.stepped("pretrain", 50)
    assert run.restarted("learner-0", Exit(1)) is None
    run.stepped("train", 1)
    assert run.restarted("learner-0", Exit(1)) is None


def test_processes_are_counted_apart() -> None:
    """Many that were lost once, a preempted fleet, are no failure that comes back."""
    run = Stagnation(max_restarts=1)
    assert [run.restarted(f"generator-{i}", Exit(-9)) for i in range(64)] == [None] * 64


def test_the_setting_is_checked() -> None:
    with pytest.raises(ValueError, match=r"launch\.max_restarts_without_step must be >= 0, got -1"):
        SupervisorSettings(RestartPolicy(), max_restarts_without_step=-1)
