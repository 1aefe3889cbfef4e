"""The problems that ship with the package."""

from __future__ import annotations

import re

from headrace.actors.dispatcher.sources import RecordSource
from headrace.actors.grader.math_grader import gold_answer
from headrace.actors.records import PythonRecords
from headrace.actors.tasks.word_problems import word_problems


def test_their_sums_are_right() -> None:
    problems = list(word_problems())
    assert len({problem["question"] for problem in problems}) == len(problems) == 36
    for problem in problems:
        for sum_, result in re.findall(r"(\d[\d.]*(?: [-+*/] \d[\d.]*)+) = (\d+(?:\.\d+)?)", problem["answer"]):
            assert abs(eval(sum_) - float(result)) < 1e-9, (sum_, problem)
        worked, _, last = problem["answer"].partition("\n#### ")
        assert re.findall(r"\d+(?:\.\d+)?", worked)[-1] == last or last in worked, problem


def test_they_are_tasks_of_the_mathematical_grader() -> None:
    source = RecordSource(
        records=PythonRecords(word_problems), prompt_field="question", answer_after="####", held_out_size=8
    )
    tasks = [source.task(index) for index in range(28)] + source.held_out(8)
    assert len({task.task_id for task in tasks}) == 36
    assert all(gold_answer(task.answer) == task.answer for task in tasks)
