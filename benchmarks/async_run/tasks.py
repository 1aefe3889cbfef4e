"""Tasks and rewards of simulated sessions: nothing is asked, and in every group half of the sessions are right."""

from __future__ import annotations

from headrace.actors.grader.grading import Grade
from headrace.actors.session import ChatMessage, Task, Trajectory

PROMPT = (ChatMessage("user", "say it"),)


class EndlessTasks:
    def task(self, index: int) -> Task:
        return Task(f"t{index}", "endless", PROMPT)

    def held_out(self, num: int) -> list[Task]:
        return [Task(f"h{index}", "endless", PROMPT) for index in range(num)]

    def fingerprint(self) -> str:
        return "endless"


class EveryOther:
    """Every other member of a group is right, so that no group is without a gradient."""

    isolation = "inline"

    def grade(self, trajectory: Trajectory) -> Grade:
        return Grade(float(trajectory.spec.member % 2))
