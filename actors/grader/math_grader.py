r"""Grades a mathematical answer: reasoning away, the last answer by the rule, cheap comparison, then a symbolic one in
a killable process.

The policy for units, percent signs and rounding is written at the top of math_text.py.
"""

from __future__ import annotations

from headrace.actors.grader import math_symbolic
from headrace.actors.grader.extraction import (
    after_hashes,
    check_rule,
    cut_at_end_of_text,
    extract_answer,
    has_box,
    last_boxed,
    opens_reasoning,
    strip_reasoning,
)
from headrace.actors.grader.grading import Grade, Isolation, answer_text, unscorable_grade
from headrace.actors.grader.math_text import MAX_ANSWER_CHARACTERS, compare_cheaply, is_balanced, normalise
from headrace.actors.session import Task, Trajectory


class MathGrading:
    r"""1.0 where the answer equals `task.answer`, 0.0 where not, None where the gold answer cannot be scored.

    extraction: "strict" (last \boxed only) or "flexible" (see extraction.py)
    prompt_tail: what the chat template puts after the last message, e.g. "<think>\n": tells whether reasoning is open
    already
    end_of_text: markers that end a turn's text where the decoder keeps them; nothing after the first is graded
    """

    isolation: Isolation = "process"
    killed_reward: float | None = 0.0
    """an answer that exhausts the symbolic engine is wrong"""

    def __init__(
        self, *, extraction: str = "strict", prompt_tail: str = "", end_of_text: tuple[str, ...] | list[str] = ()
    ) -> None:
        self.extraction = check_rule(extraction)
        self.prompt_tail = prompt_tail
        self.end_of_text = tuple(end_of_text)

    def warm_up(self, in_child: bool) -> None:
        if in_child:
            math_symbolic.load()

    def unscorable(self, task: Task) -> str | None:
        return _unreadable(task) if gold_answer(task.answer) is None else None

    def quick(self, trajectory: Trajectory) -> Grade | None:
        gold = gold_answer(trajectory.spec.task.answer)
        if gold is None:
            return unscorable_grade(_unreadable(trajectory.spec.task))
        answer = self._answer(trajectory)
        if answer is None:
            return _grade(False, "no answer found")
        if len(answer) > MAX_ANSWER_CHARACTERS:
            return _grade(False, f"answer of {len(answer)} characters; {MAX_ANSWER_CHARACTERS} are allowed")
        verdict = compare_cheaply(gold, answer)
        if verdict is None and not is_balanced(answer):
            verdict = False
        return None if verdict is None else _grade(verdict, answer)

    def grade(self, trajectory: Trajectory) -> Grade:
        decided = self.quick(trajectory)
        if decided is not None:
            return decided
        gold, answer = gold_answer(trajectory.spec.task.answer), self._answer(trajectory)
        if gold is None or answer is None:
            raise AssertionError("quick() decides sessions without a gold answer or an answer")
        return _grade(math_symbolic.equal_symbolically(symbolic_text(gold), symbolic_text(answer)), answer)

    def _answer(self, trajectory: Trajectory) -> str | None:
        text = cut_at_end_of_text(answer_text(trajectory), self.end_of_text)
        visible = strip_reasoning(text, opened_by_prompt=opens_reasoning(self.prompt_tail))
        return None if visible is None else extract_answer(visible, self.extraction)


def gold_answer(text: str | None) -> str | None:
    """The gold answer out of a solution (its last box, or what follows '####'), or the text itself; None where
    unscorable."""
    if text is None:
        return None
    gold: str | None = text.strip()
    if has_box(text):
        gold = last_boxed(text)
    elif "####" in text:
        gold = after_hashes(text)
    if not gold or not is_balanced(gold) or not normalise(gold):
        return None
    return gold


def symbolic_text(answer: str) -> str:
    """An answer as the symbolic engine gets it: without math-mode dollars."""
    return answer.strip().strip("$").strip()


def _unreadable(task: Task) -> str:
    return f"gold answer {task.answer!r} cannot be parsed"


def _grade(correct: bool, answer: str) -> Grade:
    reward = 1.0 if correct else 0.0
    return Grade(reward, {"correct": reward}, {"answer": answer[:200]})
