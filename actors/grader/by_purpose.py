"""One grading for training and another for evaluation: what a control needs, whose training rewards mean nothing."""

from __future__ import annotations

from headrace.actors.grader.composite import quick_grade
from headrace.actors.grader.grading import (
    Grade,
    Grading,
    Isolation,
    as_grade,
    joint_isolation,
    joint_killed_reward,
    warm_up_all,
    why_unscorable,
)
from headrace.actors.session import Task, Trajectory


class ByPurpose:
    """Sessions that train are graded by `train`, the held-out ones by `evaluation`. What had to be killed
    gets what joint_killed_reward says."""

    def __init__(self, *, train: Grading, evaluation: Grading) -> None:
        self.train = train
        self.evaluation = evaluation
        self.isolation: Isolation = joint_isolation((train, evaluation))
        self.killed_reward = joint_killed_reward((train, evaluation))

    def warm_up(self, in_child: bool) -> None:
        warm_up_all((self.train, self.evaluation), in_child)

    def unscorable(self, task: Task) -> str | None:
        return why_unscorable(self.train, task) or why_unscorable(self.evaluation, task)

    def quick(self, trajectory: Trajectory) -> Grade | None:
        return quick_grade(self._of(trajectory), trajectory)

    def grade(self, trajectory: Trajectory) -> Grade:
        return as_grade(self._of(trajectory).grade(trajectory))

    def _of(self, trajectory: Trajectory) -> Grading:
        return self.evaluation if trajectory.spec.purpose == "eval" else self.train
