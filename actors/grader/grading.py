"""What a grader author implements: a score for one finished session. The actor around it owns deadlines, isolation and
records.

    grade = grading.quick(trajectory)          # optional: what is decided by cheap, bounded, pure work
    if grade is None:                          # else in a killable child process, if isolation == "process"
        grade = grading.grade(trajectory)

Training and evaluation call the same object: there is no second grading path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from headrace.actors.session import Task, Trajectory

Isolation = Literal["inline", "process"]


@dataclass(frozen=True, slots=True)
class Grade:
    """`reward` None means "no reward" (an unscorable task, an infrastructure failure); it is never turned into 0."""

    reward: float | None
    components: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


class Grading(Protocol):
    isolation: Isolation
    """"inline" for cheap pure functions; "process" for anything that may be slow, hang or eat memory: it runs in a
    killable child process with a hard timeout. The object is pickled to that child, so it must be picklable."""

    def grade(self, trajectory: Trajectory) -> Grade:
        """Score a session from its messages (the last assistant message is the answer). Synchronous; may raise."""


@runtime_checkable
class QuickGrading(Protocol):
    """A grading of isolation "process" that decides most sessions without the child."""

    def quick(self, trajectory: Trajectory) -> Grade | None:
        """The grade, where cheap and bounded work decides it; None sends the session to the child process."""


@runtime_checkable
class WarmGrading(Protocol):
    """A grading whose first call is slow (imports, tables)."""

    def warm_up(self, in_child: bool) -> None:
        """Called once in each process that uses it. in_child: before `grade` in the grading process; else before
        `quick` in the actor's, where only what `quick` needs should be loaded."""


@runtime_checkable
class ChoosyGrading(Protocol):
    """A grading that can score some tasks only. The preflight asks it, so that a run whose tasks it cannot score does
    not start."""

    def unscorable(self, task: Task) -> str | None:
        """Why no answer to this task could be scored; None where one can."""


@runtime_checkable
class HostileAnswerGrading(Protocol):
    """A grading for which an answer that exhausts the time or memory limit is a wrong answer, not an infrastructure
    failure."""

    killed_reward: float | None
    """the reward of a session whose grading had to be killed; a grading without this attribute gives None"""


def joint_isolation(parts: Iterable[Grading]) -> Isolation:
    """What a grading made of parts needs: a process where one of them does."""
    return "process" if any(part.isolation == "process" for part in parts) else "inline"


def joint_killed_reward(parts: Iterable[Grading]) -> float | None:
    """0.0 where every part that runs in a process says so of a killed answer, else None."""
    in_process = [part for part in parts if part.isolation == "process"]
    return 0.0 if in_process and all(killed_reward(part) == 0.0 for part in in_process) else None


def warm_up_all(parts: Iterable[Grading], in_child: bool) -> None:
    for part in parts:
        if isinstance(part, WarmGrading):
            part.warm_up(in_child)


def unscorable_grade(reason: str) -> Grade:
    """No reward, since no answer to the task could have one."""
    return Grade(None, notes={"unscorable": reason})


def why_unscorable(grading: object, task: Task) -> str | None:
    """The grading's own word on a task; None where it has none."""
    return grading.unscorable(task) if isinstance(grading, ChoosyGrading) else None


def killed_reward(grading: object) -> float | None:
    """What a session gets when its grading ran past the limit or died: the grading's own rule, else None."""
    return grading.killed_reward if isinstance(grading, HostileAnswerGrading) else None


def as_grade(returned: object) -> Grade:
    """What a grading returned as a Grade of plain values; a reward that is not finite is none. Raises TypeError that
    says what `grade` must return."""
    if not isinstance(returned, Grade):
        raise TypeError(
            f"grade(trajectory) must return a Grade, got {type(returned).__name__} {str(returned)[:80]!r}; "
            "return Grade(reward), or Grade(None) where there is no reward"
        )
    components = {str(name): float(value) for name, value in returned.components.items()}
    notes = {str(name): str(value) for name, value in returned.notes.items()}
    if returned.reward is None:
        return Grade(None, components, notes)
    if isinstance(returned.reward, str | bytes):
        raise TypeError(f"the reward of a Grade must be a number or None, got the text {returned.reward!r}")
    reward = float(returned.reward)
    if math.isfinite(reward):
        return Grade(reward, components, notes)
    detail = f"the grading returned {reward}"
    return Grade(None, components, {**notes, "grading": "not_finite", "grading_detail": detail})


def answer_text(trajectory: Trajectory) -> str:
    """The content of the last assistant message: the text that every grading judges. "" where the policy said
    nothing."""
    for message in reversed(trajectory.messages):
        if message.role == "assistant":
            return message.content
    return ""
