"""A grading says beforehand which tasks it cannot score, in the words that it would use afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.actors.grader.code_tests import CodeTestsGrading
from headrace.actors.grader.coin_toss import CoinToss
from headrace.actors.grader.composite import CompositeGrading
from headrace.actors.grader.exact_match import ExactMatchGrading
from headrace.actors.grader.grading import as_grade, why_unscorable
from headrace.actors.grader.math_grader import MathGrading
from headrace.actors.grader.multiple_choice import MultipleChoiceGrading
from headrace.actors.grader.reasoning_gym_grader import ReasoningGymGrading

CHOOSY = [ExactMatchGrading(), MathGrading(), MultipleChoiceGrading(), CodeTestsGrading(), ReasoningGymGrading()]


@pytest.mark.parametrize("grading", CHOOSY, ids=lambda grading: type(grading).__name__)
def test_what_it_says_before_is_what_it_says_after(make_session: Any, grading: Any) -> None:
    session = make_session("42", None)
    reason = why_unscorable(grading, session.spec.task)
    grade = as_grade(grading.grade(session))
    assert grade.reward is None
    assert reason == grade.notes["unscorable"]


def test_a_task_with_an_answer_can_be_scored(make_session: Any) -> None:
    task = make_session("42", "42").spec.task
    assert why_unscorable(ExactMatchGrading(), task) is None
    assert why_unscorable(MathGrading(), task) is None


def test_a_composite_can_score_what_each_of_its_parts_can(make_session: Any) -> None:
    both = CompositeGrading(
        gradings={"exact": ExactMatchGrading(), "luck": CoinToss()}, weights={"exact": 1, "luck": 1}
    )
    assert why_unscorable(both, make_session("42", "42").spec.task) is None
    assert why_unscorable(both, make_session("42", None).spec.task) == "exact: the task has no answer"
