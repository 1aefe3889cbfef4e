"""Procedural tasks: pure in the index, JSON-safe, apart from the held-out ones, scored by the library's own scorer."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from headrace.actors.dispatcher.sources import HeldOutPrompts, ReasoningGymSource
from headrace.actors.grader.reasoning_gym_grader import ReasoningGymGrading
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task, Trajectory
from headrace.actors.tasks.number_sorting import CompactNumberSorting
from headrace.actors.tasks.plain_json import from_json
from headrace.actors.tasks.prompts import LibraryPrompt

INTEGERS = {"min_value": 0, "max_value": 99, "min_decimals": 0, "max_decimals": 0}
SORTING: dict[str, Any] = {"number_sorting": {"config": {"min_numbers": 2, "max_numbers": 3, **INTEGERS}}}
MIXTURE: dict[str, Any] = {"gcd": {"weight": 3.0}, "chain_sum": {"weight": 1.0, "config": {"max_terms": 3}}}


def sorting_source(**changes: Any) -> ReasoningGymSource:
    return ReasoningGymSource(**{"datasets": SORTING, "prompt": CompactNumberSorting(), "held_out_size": 64, **changes})


def answered(task: Task, answer: str) -> Trajectory:
    spec = SessionSpec("s", "g", 0, "train", task, Sampling())
    one = np.zeros(1, np.int32)
    messages = (*task.prompt, ChatMessage("assistant", answer))
    return Trajectory(spec, one, one.astype(np.float32), one.astype(bool), one, (), messages, "done")


def test_a_task_is_a_function_of_its_index() -> None:
    forwards, backwards = sorting_source(), sorting_source()
    indices = [0, 1, 7, 499, 500, 12345]
    first = [forwards.task(index) for index in indices]
    again = [backwards.task(index) for index in reversed(indices)]
    assert first == again[::-1]
    assert len({task.task_id for task in first}) == len(indices)
    assert forwards.held_out(64) == backwards.held_out(64)


def test_one_name_is_a_mixture_of_one() -> None:
    assert ReasoningGymSource(datasets="gcd", held_out_size=4).task(3) == ReasoningGymSource(
        datasets={"gcd": None}, held_out_size=4
    ).task(3)


def test_seeds_change_what_they_name() -> None:
    one, other = sorting_source(seed=0), sorting_source(seed=1)
    assert [one.task(i).prompt for i in range(20)] != [other.task(i).prompt for i in range(20)]
    assert one.held_out(64) == other.held_out(64)
    assert one.held_out(8) != sorting_source(held_out_seed=9).held_out(8)
    assert one.held_out(8) == one.held_out(64)[:8]


def test_neighbouring_seeds_share_nothing() -> None:
    """The library makes item i from seed + i, so seeds 0 and 1 of its own would share all items but one."""
    one = {sorting_source(seed=0, held_out_size=0).task(i).prompt for i in range(300)}
    other = {sorting_source(seed=1, held_out_size=0).task(i).prompt for i in range(300)}
    assert len(one & other) < 10


def test_held_out_prompts_never_occur_in_training() -> None:
    """A space of 32 prompts, a quarter of which is held out: training avoids them by drawing again."""
    tiny = {"number_sorting": {"config": {**INTEGERS, "min_numbers": 2, "max_numbers": 2, "max_value": 3}}}
    source = sorting_source(datasets=tiny, held_out_size=8)
    held_out = {task.prompt for task in source.held_out(8)}
    assert len(held_out) == 8
    training = {source.task(index).prompt for index in range(1500)}
    assert not training & held_out
    assert len(training) > 15
    texts = HeldOutPrompts(source=source, num=8)()
    assert set(texts) == {prompt[-1].content for prompt in held_out}


def test_a_space_that_is_too_small_is_refused() -> None:
    tiny = {"number_sorting": {"config": {**INTEGERS, "min_numbers": 2, "max_numbers": 2, "max_value": 1}}}
    with pytest.raises(ValueError, match="distinct prompts for held_out_size=64"):
        sorting_source(datasets=tiny).held_out(1)
    with pytest.raises(ValueError, match="held-out"):
        sorting_source(datasets=tiny, held_out_size=8).task(0)


def test_compact_prompts_and_answers() -> None:
    source = sorting_source()
    for index in range(50):
        task = source.task(index)
        prompt = task.prompt[0].content
        numbers = [int(number) for number in prompt[1:-1].split(",")]
        assert (prompt[0] in "^v", prompt[-1], 2 <= len(numbers) <= 3) == (True, "=", True)
        assert task.answer is not None
        assert json.loads(task.answer) == sorted(numbers, reverse=prompt[0] == "v")
        assert ReasoningGymGrading().grade(answered(task, task.answer)).reward == 1.0
        shifted = json.dumps([number + 2 for number in json.loads(task.answer)])
        assert ReasoningGymGrading().grade(answered(task, shifted)).reward == 0.0


def test_mixture_follows_the_weights() -> None:
    source = ReasoningGymSource(datasets=MIXTURE, held_out_size=16, prompt=LibraryPrompt(system="s", instruction="i"))
    names = [source.task(index).source for index in range(800)]
    assert 0.68 < names.count("gcd") / len(names) < 0.82
    task = source.task(0)
    assert [message.role for message in task.prompt] == ["system", "user"]
    assert task.prompt[1].content.endswith("\n\ni")


@pytest.mark.parametrize(
    "dataset",
    ["number_sorting", "countdown", "puzzle24", "graph_color", "complex_arithmetic", "knights_knaves", "count_primes",
     "rearc", "advanced_geometry", "word_sorting", "spiral_matrix", "n_queens", "simple_integration", "futoshiki"],
)  # fmt: skip
def test_an_entry_travels_as_json_and_still_scores(dataset: str) -> None:
    """What the scorer needs survives: tuples, keys that are no text, numpy scalars."""
    source = ReasoningGymSource(datasets={dataset: None}, held_out_size=0)
    for index in (0, 1, 501):
        task = source.task(index)
        entry = json.loads(json.dumps(task.entry, allow_nan=False))
        assert entry == task.entry
        answer = _colouring(task) if dataset == "graph_color" else task.answer
        assert answer is not None
        assert ReasoningGymGrading().grade(answered(task, answer)).reward == 1.0


def _colouring(task: Task) -> str:
    """graph_color has many right answers and so no `answer`; one of them stands in its metadata."""
    item: Any = from_json(task.entry["item"])
    return json.dumps(item["metadata"]["possible_answer"])


def test_a_fingerprint_covers_every_setting() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"seed": 5},
        {"held_out_seed": 5},
        {"held_out_size": 5},
        {"prompt": LibraryPrompt()},
        {"prompt": LibraryPrompt(system="x")},
        {"datasets": MIXTURE},
    ]
    prints = {sorting_source(**change).fingerprint() for change in changes}
    assert len(prints) == 7
    assert sorting_source().fingerprint() == sorting_source().fingerprint()


@pytest.mark.parametrize(
    ("datasets", "complaint"),
    [
        ({}, "at least one"),
        ({"gcd": {"wieght": 1}}, "unknown .*wieght"),
        ({"gcd": {"weight": 0}}, "weight must be > 0"),
        ({"gcd": {"config": {"seed": 1}}}, "seed is set by the source"),
        ({"no_such": None}, "no dataset 'no_such'"),
        ({"gcd": {"config": {"numbers": 3}}}, "datasets.gcd.config"),
    ],
)
def test_settings_are_checked(datasets: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ReasoningGymSource(datasets=datasets, held_out_size=0).task(0)


def test_tasks_are_plain_data() -> None:
    json.dumps(asdict(sorting_source().task(3)), allow_nan=False)
