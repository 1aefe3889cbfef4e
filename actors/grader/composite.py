"""A weighted sum of gradings, every component recorded. A missing component makes the whole reward missing, never
smaller."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.actors.grader.grading import (
    Grade,
    Grading,
    Isolation,
    QuickGrading,
    as_grade,
    joint_isolation,
    joint_killed_reward,
    warm_up_all,
    why_unscorable,
)
from headrace.actors.session import Task, Trajectory


class CompositeGrading:
    """reward = Σ weights[name] · gradings[name].

    Components are recorded under `name` and `name.component`. Where the whole had to be killed the reward is None,
    unless every component that runs in a process says 0.0 for a killed answer: then it is 0.0.
    """

    def __init__(self, *, gradings: Mapping[str, Grading], weights: Mapping[str, float]) -> None:
        if not gradings:
            raise ValueError("gradings must hold at least one grading, got none")
        if set(gradings) != set(weights):
            raise ValueError(f"weights must name the gradings {sorted(gradings)}, got {sorted(weights)}")
        self.gradings = dict(gradings)
        self.weights = {name: float(weights[name]) for name in self.gradings}
        self.isolation: Isolation = joint_isolation(self.gradings.values())
        self.killed_reward = joint_killed_reward(self.gradings.values())

    def warm_up(self, in_child: bool) -> None:
        warm_up_all(self.gradings.values(), in_child)

    def unscorable(self, task: Task) -> str | None:
        """Why one of the components could not score it: then the whole cannot."""
        reasons = {name: why_unscorable(part, task) for name, part in self.gradings.items()}
        return next((f"{name}: {reason}" for name, reason in reasons.items() if reason is not None), None)

    def quick(self, trajectory: Trajectory) -> Grade | None:
        """The sum, where every component is inline or decides quickly."""
        grades: dict[str, Grade] = {}
        for name, part in self.gradings.items():
            grade = quick_grade(part, trajectory)
            if grade is None:
                return None
            grades[name] = grade
        return self._sum(grades)

    def grade(self, trajectory: Trajectory) -> Grade:
        return self._sum({name: as_grade(part.grade(trajectory)) for name, part in self.gradings.items()})

    def _sum(self, grades: dict[str, Grade]) -> Grade:
        components: dict[str, float] = {}
        notes: dict[str, str] = {}
        total: float | None = 0.0
        for name, grade in grades.items():
            components |= {f"{name}.{key}": value for key, value in grade.components.items()}
            notes |= {f"{name}.{key}": value for key, value in grade.notes.items()}
            if grade.reward is None:
                total = None
                notes.setdefault("missing_component", name)
            else:
                components[name] = grade.reward
                total = None if total is None else total + self.weights[name] * grade.reward
        return Grade(total, components, notes)


def quick_grade(grading: Grading, trajectory: Trajectory) -> Grade | None:
    """The grade where it needs no child process: of an inline grading, or what `quick` decides."""
    if grading.isolation == "inline":
        return as_grade(grading.grade(trajectory))
    decided = grading.quick(trajectory) if isinstance(grading, QuickGrading) else None
    return None if decided is None else as_grade(decided)
