"""The inline gradings: exact match, multiple choice, format, coin toss, composition."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.actors.grader.coin_toss import CoinToss
from headrace.actors.grader.composite import CompositeGrading
from headrace.actors.grader.exact_match import ExactMatchGrading
from headrace.actors.grader.format_reward import FormatGrading, has_format
from headrace.actors.grader.math_grader import MathGrading
from headrace.actors.grader.multiple_choice import MultipleChoiceGrading
from headrace.actors.grader.reasoning_gym_grader import ReasoningGymGrading
from headrace.actors.session import Trajectory

MakeSession = Callable[..., Trajectory]


@pytest.mark.parametrize(
    ("text", "gold", "reward"),
    [
        (r"\boxed{E}", "E", 1.0),
        (r"\boxed{\text{E}}", "E", 1.0),
        (r"\boxed{\text{(E)}}", "E", 1.0),
        (r"\boxed{E: a longer option}", "E", 1.0),
        (r"\boxed{C} ... \boxed{E}", "E", 1.0),
        (r"\boxed{C} ... \boxed{E}", "C", 0.0),
        (r"\boxed{Every}", "E", 0.0),
        (r"field \boxed{\langle H\rangle \ll \Delta E} so **Answer: D**", "D", 1.0),
        (r"field \boxed{\langle H\rangle \ll \Delta E} so **Answer: D**", "E", 0.0),
        ("The answer is (B).", "B", 1.0),
        ("no choice", "B", 0.0),
        (r"<think>\boxed{B}", "B", 0.0),
        (r"\boxed{B}", "42", None),
        (r"\boxed{B}", None, None),
    ],
)
def test_multiple_choice(text: str, gold: str | None, reward: float | None, make_session: MakeSession) -> None:
    """cases A25, A26."""
    assert MultipleChoiceGrading().grade(make_session(text, gold)).reward == reward


@pytest.mark.parametrize(
    ("completion", "prompt_tail", "shaped"),
    [
        ("reasoning</think>answer", "<|assistant|><think>\n", True),
        ("reasoning</think>answer", "<|assistant|>", False),
        ("<think>a</think>b", "", True),
        ("<think>a", "", False),
        ("a", "<think>\n", False),
        ("<think>a</think><think>b</think>", "", False),
    ],
)
def test_thinking_format(completion: str, prompt_tail: str, shaped: bool) -> None:
    """cases A8: huggingface/trl#6995: the opening tag may stand in the prompt."""
    assert has_format(completion, sections=("think",), prompt_tail=prompt_tail) is shaped


def test_a_final_newline_changes_nothing(make_session: MakeSession) -> None:
    """cases A10: ZHZisZZ/dllm#118: a natural stop has none."""
    grading = FormatGrading(sections=["reasoning", "answer"], text_may_follow=False)
    text = "<reasoning>\nx\n</reasoning>\n<answer>\n5\n</answer>"
    assert [grading.grade(make_session(text + end)).reward for end in ("", "\n", "more")] == [1.0, 1.0, 0.0]


def test_exact_match(make_session: MakeSession) -> None:
    assert ExactMatchGrading().grade(make_session(" a  b\n", "a b")).reward == 1.0
    assert ExactMatchGrading().grade(make_session("A b", "a b")).reward == 0.0
    assert ExactMatchGrading(case_sensitive=False).grade(make_session("A b", "a b")).reward == 1.0
    assert ExactMatchGrading(extraction="strict").grade(make_session(r"so \boxed{a}", "a")).reward == 1.0
    assert ExactMatchGrading().grade(make_session("<think>a", "a")).reward == 0.0
    assert ExactMatchGrading().grade(make_session("a", None)).reward is None


def test_coin_toss_depends_on_the_session_alone(make_session: MakeSession) -> None:
    ids = [f"s{i}" for i in range(2000)]
    first = [CoinToss(p=0.3, seed=1).grade(make_session("right", session_id=i)).reward for i in ids]
    again = [CoinToss(p=0.3, seed=1).grade(make_session("wrong", session_id=i)).reward for i in ids]
    other = [CoinToss(p=0.3, seed=2).grade(make_session("wrong", session_id=i)).reward for i in ids]
    assert first == again != other
    assert 0.26 < sum(reward or 0.0 for reward in first) / len(ids) < 0.34
    with pytest.raises(ValueError, match="p must be in"):
        CoinToss(p=1.5)


def test_a_composite_records_each_component(make_session: MakeSession) -> None:
    composite = CompositeGrading(
        gradings={"match": ExactMatchGrading(), "format": FormatGrading()}, weights={"match": 1.0, "format": 0.5}
    )
    grade = composite.grade(make_session("<think>x</think>5", "5"))
    assert grade.reward == 1.5
    assert grade.components == {"match": 1.0, "match.correct": 1.0, "format": 1.0, "format.format": 1.0}
    assert composite.isolation == "inline"


def test_a_missing_component_makes_the_reward_missing(make_session: MakeSession) -> None:
    """cases B41 depends on it: no reward is not 0."""
    composite = CompositeGrading(
        gradings={"match": ExactMatchGrading(), "format": FormatGrading()}, weights={"match": 1.0, "format": 0.5}
    )
    grade = composite.grade(make_session("<think>x</think>5", None))
    assert grade.reward is None
    assert grade.components["format"] == 1.0
    assert grade.notes["missing_component"] == "match"


def test_a_composite_is_as_isolated_as_its_parts(make_session: MakeSession) -> None:
    composite = CompositeGrading(
        gradings={"math": MathGrading(), "format": FormatGrading()}, weights={"math": 1.0, "format": 0.1}
    )
    assert composite.isolation == "process"
    assert composite.killed_reward == 0.0
    decided = composite.quick(make_session(r"<think></think>\boxed{1}", "1"))
    assert decided is not None
    assert decided.reward == pytest.approx(1.1)
    assert composite.quick(make_session(r"<think></think>\boxed{(x+1)^2}", "x^2+2x+1")) is None
    with pytest.raises(ValueError, match="weights must name"):
        CompositeGrading(gradings={"math": MathGrading()}, weights={"maths": 1.0})


def test_reasoning_gym_entry(make_session: MakeSession) -> None:
    """A task without what the scorer needs has no reward; an answer that the scorer cannot read is a wrong one."""
    assert ReasoningGymGrading().quick(make_session("5")).reward is None  # type: ignore[union-attr]
    entry = {"dataset": "gcd", "config": {}, "item": {"question": "", "answer": "12", "metadata": {}}}
    grading = ReasoningGymGrading(extraction="answer_tags")
    right = grading.quick(make_session("<think>7</think> it is <answer>12</answer>", entry=entry))
    assert right is not None
    assert (right.reward, right.components) == (1.0, {"gcd": 1.0})
    assert grading.grade(make_session("12", entry=entry)).reward == 0.0
    assert grading.grade(make_session("<think><answer>12</answer>", entry=entry)).reward == 0.0
    factors = {"dataset": "prime_factorization", "config": {}, "item": {"answer": "2 × 3", "metadata": {}}}
    assert grading.grade(make_session("<answer>two times three</answer>", entry=factors)).reward == 0.0
    assert grading.grade(make_session("<answer>2 × 3</answer>", entry=factors)).reward == 1.0
    broken = {"dataset": "prime_factorization", "config": {}, "item": {"metadata": {}}}
    with pytest.raises(KeyError):
        grading.grade(make_session("<answer>2 × 3</answer>", entry=broken))
    integral = {"dataset": "simple_integration", "config": {}, "item": {}}
    assert grading.quick(make_session("x", entry=integral)) is None
