"""A grader: full reward for the right answer, part of it for a right beginning."""

from __future__ import annotations

from typing import Literal

from headrace.actors.grader.grading import Grade, answer_text
from headrace.actors.session import Trajectory


class CloseAnswer:
    """1.0 for `task.answer`; else up to `partial`, by the share of the answer that the text begins with. None ("no
    reward", never 0) where the task has no answer."""

    isolation: Literal["inline", "process"] = "inline"
    """Cheap and pure. Whatever may be slow or hang says "process" and runs in a killable child."""

    def __init__(self, *, partial: float = 0.2) -> None:
        if not 0 <= partial < 1:
            raise ValueError(f"partial must be in [0, 1), got {partial}; 1 is what the right answer gets")
        self.partial = partial

    def grade(self, trajectory: Trajectory) -> Grade:
        gold = trajectory.spec.task.answer
        if not gold:
            return Grade(None, notes={"unscorable": "the task has no answer"})
        answer = answer_text(trajectory).strip()
        correct = float(answer == gold)
        begun = _num_common(answer, gold) / len(gold)
        reward = 1.0 if correct else self.partial * begun
        return Grade(reward, {"correct": correct, "begun": begun})


def _num_common(first: str, second: str) -> int:
    """Characters with which both begin."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))
