"""A control trains on one grading and is measured by another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.actors.grader.by_purpose import ByPurpose
from headrace.actors.grader.coin_toss import CoinToss
from headrace.actors.grader.exact_match import ExactMatchGrading
from headrace.actors.grader.math_grader import MathGrading


def of_purpose(session: Any, purpose: str) -> Any:
    return replace(session, spec=replace(session.spec, purpose=purpose))


def test_each_purpose_has_its_grading(make_session: Any) -> None:
    grading = ByPurpose(train=CoinToss(p=0.0), evaluation=ExactMatchGrading())
    right = make_session("42", "42")
    assert grading.isolation == "inline"
    assert grading.grade(of_purpose(right, "train")).components == {"coin": 0.0}
    assert grading.grade(of_purpose(right, "eval")).reward == 1.0
    assert grading.unscorable(make_session("42", None).spec.task) == "the task has no answer"


def test_a_part_that_needs_a_process_gets_one(make_session: Any) -> None:
    grading = ByPurpose(train=CoinToss(p=1.0), evaluation=MathGrading())
    assert grading.isolation == "process"
    assert grading.quick(of_purpose(make_session("1", "42"), "train")).reward == 1.0  # type: ignore[union-attr]
    assert grading.quick(of_purpose(make_session("1", "42"), "eval")).reward == 0.0  # type: ignore[union-attr]
    assert grading.killed_reward == MathGrading.killed_reward
