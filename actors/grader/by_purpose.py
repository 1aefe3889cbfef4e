"""One grading for training and another for evaluation: what a control needs, whose training rewards mean nothing."""

from __future__ import annotations

from headrace.actors.grader.composite import quick_grade
from headrace.actors.grader.grading import (
    Grade,
    Grading,
    Isolation,
    WarmGrading,
    as_grade,
    killed_reward,
    why_unscorable,
)
from headrace.actors.session import Task, Trajectory


class ByPurpose:
    """Sessions that train are graded by `train`, the held-out ones by `evaluation`. Where a grading had to be killed,
    the reward is 0.0 if both say so of a killed answer, else None."""

    def __init__(self, *, train: Grading, evaluation: Grading) -> None:
        self.train = train
        self.evaluation = evaluation
        in_process = [part for part in (train, evaluation) if part.isolation == "process"]
        self.isolation: Isolation = "process" if in_process else "inline"
        hostile = bool(in_process) and all(killed_reward(part) == 0.0 for part in in_process)
        self.killed_reward: float | None = 0.0 if hostile else None

    def warm_up(self, in_child: bool) -> None:
        for part in (self.train, self.evaluation):
            if isinstance(part, WarmGrading):
                part.warm_up(in_child)

    def unscorable(self, task: Task) -> str | None:
        return why_unscorable(self.train, task) or why_unscorable(self.evaluation, task)

    def quick(self, trajectory: Trajectory) -> Grade | None:
        return quick_grade(self._of(trajectory), trajectory)

    def grade(self, trajectory: Trajectory) -> Grade:
        return as_grade(self._of(trajectory).grade(trajectory))

    def _of(self, trajectory: Trajectory) -> Grading:
        return self.evaluation if trajectory.spec.purpose == "eval" else self.train
