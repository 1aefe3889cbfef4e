"""Inline gradings read what a policy writes on the actor's own event loop: long repetitive texts must stay cheap."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.grader.exact_match import ExactMatchGrading
from headrace.actors.grader.extraction import brace_pairs, extract_answer
from headrace.actors.grader.format_reward import FormatGrading
from headrace.actors.grader.math_grader import MathGrading
from headrace.actors.grader.math_text import compare_cheaply
from headrace.actors.grader.multiple_choice import MultipleChoiceGrading
from headrace.actors.grader.reasoning_gym_grader import ReasoningGymGrading
from headrace.actors.session import Trajectory

MakeSession = Callable[..., Trajectory]

UNITS = [
    r"\boxed{",
    "answer ",
    "answer:",
    "answer" + " " * 500,
    "answer" + "*" * 500,
    "<answer>",
    "<think>",
    "</think>",
    "final answer **",
    "1,000",
    r"\text{a ",
    "E: ",
    *"#{}*[(-9,\\ \n$.a",
]


@pytest.mark.parametrize("unit", UNITS)
def test_long_texts_are_cheap(unit: str, make_session: MakeSession) -> None:
    text = unit * (100_000 // len(unit))
    entry = {
        "dataset": "number_sorting",
        "item": {"answer": "['1']", "metadata": {"direction": "ascending", "sorted_numbers": ["1"]}},
    }
    session = make_session(text, "E", entry=entry)
    ReasoningGymGrading().warm_up(in_child=False)
    began_s = time.process_time()
    for extraction in ("strict", "flexible"):
        MathGrading(extraction=extraction).quick(session)
        ExactMatchGrading(extraction=extraction).grade(session)
    MultipleChoiceGrading().grade(session)
    FormatGrading(sections=("think", "answer")).grade(session)
    for extraction in ("whole", "answer_tags", "flexible"):
        assert ReasoningGymGrading(extraction=extraction).grade(session).reward == 0.0
    assert time.process_time() - began_s < 1.0


@given(st.text(alphabet=r"\{}boxedfna swr:#*$0123456789.,/%-+()[]", max_size=80))
@settings(max_examples=300)
def test_any_text_is_judged_without_an_exception(text: str) -> None:
    for rule in ("strict", "flexible"):
        answer = extract_answer(text, rule)  # type: ignore[arg-type]
        assert answer is None or compare_cheaply("42", answer) in (True, False, None)


@given(st.text(alphabet="{}\\a", max_size=30))
def test_brace_pairs_match_a_recursive_reading(text: str) -> None:
    def close(start: int) -> int | None:
        depth, position = 1, start
        while position < len(text):
            if text[position] == "\\":
                position += 2
                continue
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return position
            position += 1
        return None

    pairs = brace_pairs(text)
    position = 0
    while position < len(text):
        if text[position] == "{":
            assert pairs.get(position + 1) == close(position + 1)
        position += 2 if text[position] == "\\" else 1


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_are_compared_exactly(gold: object, answer: object) -> None:
    assert compare_cheaply(str(gold), str(answer)) is (gold == answer)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9))
def test_a_decimal_equals_its_other_spellings(number: object) -> None:
    text = f"{number:f}"
    for spelling in (
        text,
        f"+{text}".replace("+-", "-"),
        f"{text}00",
        f"${text}$",
        rf"\text{{{text}}}",
        f"{number:,f}",
    ):
        assert compare_cheaply(text, spelling) is True
