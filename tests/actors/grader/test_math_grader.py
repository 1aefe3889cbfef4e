r"""The mathematical grader on the table of public bug reports (cases A1 to A31), by the object that training uses."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.actors.grader import math_symbolic
from headrace.actors.grader.math_grader import MathGrading
from headrace.actors.grader.worker_pool import WorkerPool
from headrace.actors.session import Trajectory

MakeSession = Callable[..., Trajectory]

IN_A_BOX = [
    # (case, gold, boxed answer, reward)
    ("A4", "42", "42", 1.0),
    ("A4", "1/2", r"\frac{1}{2}", 1.0),
    ("A13", "3*x-1*y+13=0", "3x+4y+14=0", 0.0),
    ("A13", "3*x-1*y+13=0", "$3x+4y+14=0$", 0.0),
    ("A13", "$3*x-1*y+13=0$", "3x+4y+14=0", 0.0),
    ("A14", r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", 0.0),
    ("A14", r"\frac{1}{2004!}", r"\frac{1}{2006!}", 0.0),
    ("A14", r"\frac{1}{2004!}", r"\frac{1}{2004!}", 1.0),
    ("A14", r"1, 2, \ldots, n", r"1, 3, 5, \ldots, 2n-1", 0.0),
    ("A14", r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}", 0.0),
    ("A14", r"1-\frac{1}{\mathrm{e}}", r"1-\frac{1}{\mathrm{k}}", 0.0),
    ("A14", r"1-\frac{1}{\mathrm{e}}", r"1-e^{-1}", 1.0),
    ("A14", r"\pm 2021", "2021", 0.0),
    ("A14", "D=(0,1)", "D=(0,1.5)", 0.0),
    ("A14", "n=2,3,4", "n=1,2,3", 0.0),
    ("A14", r"\frac{x}{2^{99}}", r"\frac{x}{2^{98}}", 0.0),
    ("A14", r"x+\frac{1}{2^{99}}", r"x+\frac{1}{2^{98}}", 0.0),
    ("A14", r"x=\frac{1}{2^{99}}", r"x=\frac{1}{2^{98}}", 0.0),
    ("A14", r"(\frac{1}{2^{99}},1)", r"(\frac{1}{2^{98}},1)", 0.0),
    ("A14", r"\{\frac{1}{2^{99}},1\}", r"\{\frac{1}{2^{98}},1\}", 0.0),
    ("A14", r"\frac{1}{2^{99}}<x<1", r"\frac{1}{2^{98}}<x<1", 0.0),
    ("A14", "0.0000001", "0.0000002", 0.0),
    ("A16, documented as unsupported", r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}", 0.0),
    ("A16", "f(x)=0", r"\forall x>0, f(x)=0", 0.0),
    ("A17", "0<x<12.5", "(0,12.5)", 1.0),
    ("A17", "(0,12.5)", "0<x<12.5", 0.0),
    ("A20", r"\frac{1}{12}", "0.0833333333333333", 1.0),
    ("A20", "33.3", r"\frac{100}{3}", 0.0),
    ("A20", "34x+45y-20z+100=0", "-34x-45y+20z-100=0", 1.0),
    ("A20", r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}", 1.0),
    ("A20", r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{bmatrix}1&2\end{bmatrix}", 1.0),
    ("A20", r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\3\end{bmatrix}", 0.0),
    ("A22", r"\left(1,2\right)", "(1,2)", 1.0),
    ("A22", r"(2,\infty)", r"(2,\infty)", 1.0),
    ("A22", r"(-\infty,-5]\cup[5,\infty)", r"(-\infty,-5]\cup[5,\infty)", 1.0),
    ("A22", r"[2,\infty)", r"(2,\infty)", 0.0),
    ("A22", r"12\text{ ft}", "12", 1.0),
    ("A22", "12", r"12 \mathrm{cm}", 1.0),
    ("A23", "50%", "50", 1.0),
    ("A23", r"50\%", "50%", 1.0),
    ("A23", "50", r"50\%", 1.0),
    ("A23", r"50\%", "0.5", 0.0),
    ("A29", "#### -3", "-3", 1.0),
    ("A29", "#### -3", "3", 0.0),
    ("A29", "#### -1,234.5", "-1234.5", 1.0),
    ("forms", "x^2+2x+1", "(x+1)^2", 1.0),
    ("forms", r"5\sqrt{3}", r"\sqrt{75}", 1.0),
    ("forms", r"\sqrt{2}", "1.41421356", 1.0),
    ("forms", "1,000,000", "1000000", 1.0),
    ("forms", r"\{1,2\}", r"\{2,1\}", 1.0),
    ("forms", "(1,2)", "(2,1)", 0.0),
    ("forms", r"\text{Tuesday}", "Tuesday", 1.0),
]

WHOLE_TEXTS = [
    # (case, extraction, gold, completion, reward)
    ("A1", "strict", "840", r"So \boxed{840}. Let me explain. Final Answer \boxed{840}", 1.0),
    (
        "A1",
        "strict",
        "4",
        r"\boxed{004}. But check: the sum is 2,552,004. So \boxed{004}. Final Answer \boxed{004}",
        1.0,
    ),
    ("A2", "strict", "7", r"First \boxed{5}. That is wrong; the answer is \boxed{7}.", 1.0),
    ("A2", "strict", "5", r"First \boxed{5}. That is wrong; the answer is \boxed{7}.", 0.0),
    ("A4", "strict", "42", r"\fbox{42}", 1.0),
    ("A4", "strict", "42", r"\fbox{42", 0.0),
    ("A5", "strict", "42", "I will list 41, 42. I am not sure.", 0.0),
    ("A5", "strict", "42", r"\boxed{42}", 1.0),
    ("A7", "strict", "42", r"<think>maybe \boxed{42}", 0.0),
    ("A7", "strict", "42", r"<think>\boxed{7}</think> \boxed{42}", 1.0),
    ("A7", "strict", "42", r"<think>\boxed{42}</think> The answer is \boxed{7}", 0.0),
    ("A19", "flexible", "73", "= 122 + 294 + 489 = 905 ... the number is **73**. Final Answer: **73**", 1.0),
    ("A19", "flexible", "905", "= 122 + 294 + 489 = 905 ... the number is **73**. Final Answer: **73**", 0.0),
    ("A28", "strict", "+".join(["1"] * 80), "words " * 50 + r"\boxed{" + "+".join(["1"] * 80) + "}", 1.0),
    ("A31", "strict", "42", "The answer is 42.", 0.0),
    ("A31", "flexible", "42", "The answer is 42.", 1.0),
]


@pytest.mark.parametrize(("case", "gold", "answer", "reward"), IN_A_BOX)
def test_boxed_answer(case: str, gold: str, answer: str, reward: float, make_session: MakeSession) -> None:
    """cases A4, A13, A14, A16, A17, A20, A22, A23, A29: see the table."""
    assert MathGrading().grade(make_session(r"So it is \boxed{" + answer + "}.", gold)).reward == reward


@pytest.mark.parametrize(("case", "extraction", "gold", "text", "reward"), WHOLE_TEXTS)
def test_completion(case: str, extraction: str, gold: str, text: str, reward: float, make_session: MakeSession) -> None:
    """cases A1, A2, A4, A5, A7, A19, A28, A31: see the table."""
    assert MathGrading(extraction=extraction).grade(make_session(text, gold)).reward == reward


def test_training_and_evaluation_judge_alike(make_session: MakeSession) -> None:
    """cases A2: what a session is for, and how it was sampled, does not change its grade, over the whole table."""
    texts = [(gold, rf"So it is \boxed{{{answer}}}.", reward) for _, gold, answer, reward in IN_A_BOX]
    texts += [(gold, text, reward) for _, extraction, gold, text, reward in WHOLE_TEXTS if extraction == "strict"]
    grading = MathGrading()
    for gold, text, reward in texts:
        train = make_session(text, gold)
        held_out = replace(train.spec, purpose="eval", sampling=replace(train.spec.sampling, temperature=0.0))
        evaluation = replace(train, spec=held_out)
        assert grading.quick(train) == grading.quick(evaluation)
        grades = grading.grade(train), grading.grade(evaluation)
        assert grades[0] == grades[1]
        assert grades[0].reward == reward


def test_quick_never_disagrees_with_the_whole_grading(make_session: MakeSession) -> None:
    """What the actor decides without a child is what the child would say; most of the table needs none."""
    quick = 0
    for _, gold, answer, reward in IN_A_BOX:
        grade = MathGrading().quick(make_session(r"\boxed{" + answer + "}", gold))
        quick += grade is not None
        assert grade is None or grade.reward == reward
    assert quick >= len(IN_A_BOX) // 3


def test_reasoning_that_the_prompt_opened(make_session: MakeSession) -> None:
    """cases A7, A8: the opening tag stands in the prompt."""
    grading = MathGrading(prompt_tail="<|im_start|>assistant\n<think>\n")
    assert grading.grade(make_session(r"maybe \boxed{42}", "42")).reward == 0.0
    assert grading.grade(make_session(r"maybe \boxed{41}</think>\boxed{42}", "42")).reward == 1.0


@pytest.mark.parametrize("gold", ["", r"\text{", None, r"\boxed{", r"\text{}"])
def test_unscorable_gold_is_no_reward(gold: str | None, make_session: MakeSession) -> None:
    """cases A11: huggingface/open-r1#566: never 1.0 and never 0.0."""
    for completion in (r"\boxed{1}", "anything", r"\boxed{\text{}"):
        grade = MathGrading().grade(make_session(completion, gold))
        assert grade.reward is None
        assert "unscorable" in grade.notes


def test_long_answers_are_wrong_quickly(make_session: MakeSession) -> None:
    """cases A5: an answer of over 1000 characters never reaches the symbolic engine."""
    began_s = time.perf_counter()
    grade = MathGrading().quick(make_session(r"\boxed{" + "x+" * 600 + "1}", "42"))
    assert grade is not None
    assert grade.reward == 0.0
    assert time.perf_counter() - began_s < 0.1


def test_comparison_has_an_order() -> None:
    """cases A17: huggingface/Math-Verify#10: an interval answers an inequality, not the reverse."""
    assert math_symbolic.equal_symbolically("0<x<12.5", "(0,12.5)")
    assert not math_symbolic.equal_symbolically("(0,12.5)", "0<x<12.5")


def test_hostile_powers_are_wrong_within_the_limit_and_the_worker_lives(make_session: MakeSession) -> None:
    """cases A40: pytorch/torchtitan#4442."""

    async def main() -> None:
        pool = WorkerPool(MathGrading(), num_workers=1, timeout_s=2.0)
        try:
            warm = await pool.grade(make_session(r"\boxed{(x+1)^2}", "x^2+2x+1"))
            assert warm.reward == 1.0
            for tower in (r"\boxed{9^{9^{9^{9}}}}", r"\boxed{(10^{10^{10}})!}"):
                began_s = time.perf_counter()
                grade = await pool.grade(make_session(tower, "9"))
                assert grade.reward == 0.0
                assert time.perf_counter() - began_s < 4.0
            assert (await pool.grade(make_session(r"\boxed{\sqrt{75}}", r"5\sqrt{3}"))).reward == 1.0
        finally:
            await pool.close()

    asyncio.run(main())


def test_grading_travels_to_its_child() -> None:
    grading = pickle.loads(pickle.dumps(MathGrading(extraction="flexible")))
    assert grading.extraction == "flexible"
