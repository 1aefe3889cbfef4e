"""Exact match of an answer with `task.answer`, after white space."""

from __future__ import annotations

from headrace.actors.grader.extraction import check_rule, extract_answer, opens_reasoning, strip_reasoning
from headrace.actors.grader.grading import Grade, Isolation, answer_text, unscorable_grade
from headrace.actors.session import Task, Trajectory

_NO_ANSWER = "the task has no answer"


class ExactMatchGrading:
    """1.0 where the answer's text is the gold text, else 0.0; None where the task has no answer.

    extraction: "whole" (all that follows the reasoning), "strict" or "flexible" (extraction.py)
    """

    isolation: Isolation = "inline"

    def __init__(self, *, extraction: str = "whole", case_sensitive: bool = True, prompt_tail: str = "") -> None:
        self.extraction = extraction if extraction == "whole" else check_rule(extraction)
        self.case_sensitive = case_sensitive
        self.prompt_tail = prompt_tail

    def unscorable(self, task: Task) -> str | None:
        return _NO_ANSWER if task.answer is None else None

    def grade(self, trajectory: Trajectory) -> Grade:
        gold = trajectory.spec.task.answer
        if gold is None:
            return unscorable_grade(_NO_ANSWER)
        answer = self._answer(answer_text(trajectory))
        reward = 1.0 if answer is not None and self._spelling(answer) == self._spelling(gold) else 0.0
        return Grade(reward, {"correct": reward}, {"answer": "" if answer is None else answer[:200]})

    def _answer(self, text: str) -> str | None:
        visible = strip_reasoning(text, opened_by_prompt=opens_reasoning(self.prompt_tail))
        if visible is None or self.extraction == "whole":
            return visible
        return extract_answer(visible, check_rule(self.extraction))

    def _spelling(self, text: str) -> str:
        joined = " ".join(text.split())
        return joined if self.case_sensitive else joined.casefold()
