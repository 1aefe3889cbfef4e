"""Grades reasoning-gym tasks by the library's own scorers (guarded: gym_scorers.py).

`task.entry` is what ReasoningGymSource writes: {"dataset": name, "config": settings, "item": the generated item as
plain JSON}.
"""

from __future__ import annotations

import json
import math

from headrace.actors.grader import gym_scorers
from headrace.actors.grader.extraction import (
    check_rule,
    cut_at_end_of_text,
    extract_answer,
    last_tagged,
    opens_reasoning,
    strip_reasoning,
)
from headrace.actors.grader.grading import Grade, Isolation, answer_text, unscorable_grade
from headrace.actors.session import Task, Trajectory
from headrace.actors.tasks.plain_json import from_json


class ReasoningGymGrading:
    """The library's score in [0, 1]; None where the task carries nothing that its scorer can use.

    extraction: "whole" (all that follows the reasoning), "answer_tags" (the last <answer>…</answer>), "strict" or
    "flexible"
    exact_numbers: number_sorting accepts numbers off by up to 1 in the library; True demands the numbers themselves
    end_of_text: markers of the end of a turn, where the decoder keeps them
    """

    isolation: Isolation = "process"
    killed_reward: float | None = 0.0

    def __init__(
        self,
        *,
        extraction: str = "whole",
        exact_numbers: bool = False,
        prompt_tail: str = "",
        end_of_text: tuple[str, ...] | list[str] = (),
    ) -> None:
        self.extraction = extraction if extraction in ("whole", "answer_tags") else check_rule(extraction)
        self.exact_numbers = exact_numbers
        self.prompt_tail = prompt_tail
        self.end_of_text = tuple(end_of_text)

    def warm_up(self, in_child: bool) -> None:
        import reasoning_gym

        assert reasoning_gym is not None, "imported for its registry"

    def unscorable(self, task: Task) -> str | None:
        return _no_entry(task) if _named(task)[0] is None else None

    def quick(self, trajectory: Trajectory) -> Grade | None:
        """The grade, where the dataset's scorer is known to be cheap and pure."""
        dataset, config_json = _named(trajectory.spec.task)
        if dataset is None:
            return unscorable_grade(_no_entry(trajectory.spec.task))
        return self.grade(trajectory) if gym_scorers.is_cheap(dataset, config_json) else None

    def grade(self, trajectory: Trajectory) -> Grade:
        task = trajectory.spec.task
        dataset, config_json = _named(task)
        item = from_json(task.entry.get("item"))
        if dataset is None or not isinstance(item, dict):
            return unscorable_grade(_no_entry(task))
        answer = self._answer(answer_text(trajectory))
        scorer = gym_scorers.scorer(dataset, config_json, self.exact_numbers)
        try:
            score = float(scorer(answer, item))
        except Exception as error:  # many scorers raise on an answer that they cannot read
            return _judge_raising(scorer, item, error)
        if not math.isfinite(score):
            return unscorable_grade(f"the scorer of {dataset} returned {score}")
        return Grade(score, {dataset: score}, {"answer": "" if answer is None else answer[:200]})

    def _answer(self, text: str) -> str | None:
        visible = strip_reasoning(
            cut_at_end_of_text(text, self.end_of_text), opened_by_prompt=opens_reasoning(self.prompt_tail)
        )
        if visible is None:
            return None
        if self.extraction == "whole":
            return visible.strip()
        if self.extraction == "answer_tags":
            return last_tagged(visible, "answer")
        return extract_answer(visible, check_rule(self.extraction))


def _named(task: Task) -> tuple[str | None, str]:
    """(dataset, its config as JSON) out of a task's entry."""
    dataset = task.entry.get("dataset")
    return (dataset if isinstance(dataset, str) else None), json.dumps(task.entry.get("config") or {}, sort_keys=True)


def _judge_raising(scorer: gym_scorers.Scorer, item: gym_scorers.Item, error: Exception) -> Grade:
    """0.0 where the scorer works on the item's own answer: the policy's was at fault. Else the item is: raises the
    error."""
    try:
        scorer(item.get("answer"), item)
    except Exception:
        raise error from None
    return Grade(0.0, notes={"unreadable": repr(error)[:200]})


def _no_entry(task: Task) -> str:
    return (
        f"task {task.task_id} has no entry of a reasoning-gym dataset; for answers of its own use grader=exact_match "
        "or grader=math"
    )
