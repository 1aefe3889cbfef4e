"""Orders of tasks: every index once, whatever is preferred; what is aside comes back; a state is gone on from."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.dispatcher.actor import Dispatcher
from headrace.actors.dispatcher.curriculum import BySuccess, InOrder, TaskOrder
from headrace.actors.session import Task

RATES = {"easy": 0.97, "middling": 0.5, "hard": 0.03}


def epochs(num: int = 30) -> Any:
    """Task `index`, of `num` prompts in three classes that come again each epoch."""

    def task(index: int) -> Task:
        number = index % num
        return Task(task_id=f"t{number}", source=list(RATES)[number % 3], prompt=())

    return task


def verdict_of(rate: float) -> Any:
    return {0.0: "all_fail", 1.0: "all_pass"}.get(rate, "useful")


def play(
    order: TaskOrder, task: Any, num: int, rng: random.Random, cursor: int = 0, rate: Any = None
) -> tuple[list[int], int]:
    """`num` groups of four, each judged before the next is drawn."""
    issued = []
    for _ in range(num):
        index, cursor = order.draw(cursor, task)
        assert index is not None
        issued.append(index)
        passed = sum(rng.random() < (rate or RATES.__getitem__)(task(index).source) for _ in range(4)) / 4
        order.judged(task(index), passed, verdict_of(passed))
    return issued, cursor


def test_in_order_is_the_sources_without_what_is_quarantined() -> None:
    task = epochs()
    issued, cursor = [], 0
    for _ in range(5):
        index, cursor = InOrder().draw(cursor, lambda i: None if i % 3 else task(i))
        issued.append(index)
    assert issued == [0, 3, 6, 9, 12]
    assert InOrder().draw(7, lambda i: None) == (None, 7)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 5))
def test_with_a_target_every_task_is_issued_once_and_none_is_forgotten(seed: int, window: int, patience: int) -> None:
    order = BySuccess(set_aside_after=0, target=0.5, window=window, patience=patience)
    issued, cursor = play(order, epochs(), 200, random.Random(seed))
    assert len(set(issued)) == len(issued)
    waiting = {index for index, _ in order.state_dict()["waiting"]}
    assert sorted({*issued, *waiting}) == list(range(cursor)), "issued, or still to come"
    for place, index in enumerate(issued):
        assert place - index <= (patience + 1) * window, "it waits for so long at most"


def test_classes_near_the_target_come_first() -> None:
    order = BySuccess(set_aside_after=0, target=0.5, window=30, patience=10)
    issued, _ = play(order, epochs(), 90, random.Random(0))
    early = [epochs()(index).source for index in issued[3:13]]
    assert early.count("middling") >= 9, "as long as there are some among the next 30"
    assert order.figures()["success/easy"] > 0.8 > order.figures()["success/middling"] > 0.2


def test_prompts_that_are_always_or_never_solved_are_set_aside_and_visited_again() -> None:
    task, rng = epochs(), random.Random(0)
    rate = {"easy": 1.0, "middling": 0.5, "hard": 0.0}
    order = BySuccess(set_aside_after=2, revisit_every=3)
    issued, cursor = play(order, task, 30, rng, rate=rate.__getitem__)
    assert issued == list(range(30)), "the first epoch is whole"
    again, cursor = play(order, task, 30, rng, cursor, rate.__getitem__)
    assert again == list(range(30, 60)), "so is the second: two groups in a row are needed"
    assert {"aside/solved": 10.0, "aside/never_solved": 10.0}.items() <= order.figures().items()
    third, cursor = play(order, task, 20, rng, cursor, rate.__getitem__)
    assert {task(index).source for index in third} == {"middling"}, "two epochs have only these"
    assert cursor >= 119
    rate["hard"] = 0.5  # it has been learned meanwhile
    fifth, cursor = play(order, task, 30, rng, 120, rate.__getitem__)
    assert {task(index).source for index in fifth} == {"easy", "middling", "hard"}, "the third time that they come up"
    assert order.figures()["aside/never_solved"] < 5
    assert order.figures()["aside/solved"] == 10.0


def test_nothing_left_to_issue_is_said() -> None:
    order = BySuccess(set_aside_after=1, revisit_every=0)
    task = epochs(3)
    _, cursor = play(order, task, 3, random.Random(0), rate=lambda source: 1.0)
    assert order.draw(cursor, task)[0] is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([None, 0.5]), st.integers(0, 120))
def test_a_state_is_gone_on_from(seed: int, target: float | None, cut: int) -> None:
    def make() -> BySuccess:
        return BySuccess(set_aside_after=2, revisit_every=2, target=target, window=7)

    whole, rng = make(), random.Random(seed)
    expected, _ = play(whole, epochs(), 150, rng)
    first, rng = make(), random.Random(seed)
    before, cursor = play(first, epochs(), cut, rng)
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    after, _ = play(second, epochs(), 150 - cut, rng, cursor)
    assert [*before, *after] == expected


def test_what_is_rewound_is_drawn_anew() -> None:
    order = BySuccess(set_aside_after=0, target=0.5, window=5)
    play(order, epochs(), 10, random.Random(0))
    order.rewind()
    issued, _ = play(order, epochs(), 12, random.Random(0), cursor=3)
    assert set(issued) <= set(range(3, 20))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"set_aside_after": -1}, r"order.set_aside_after must be >= 0, got -1"),
        ({"window": 0}, r"order.window must be >= 1"),
        ({"target": 1.5}, r"order.target must be from 0 to 1, or null, got 1.5"),
        ({"memory": 1.0}, r"order.memory must be >= 0 and < 1"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        BySuccess(**given)


def test_a_target_is_refused_in_sync_mode() -> None:
    with pytest.raises(ValueError, match=r"order.target must be null with mode=sync"):
        Dispatcher(tasks=None, group_size=2, batch_sessions=4, mode="sync", order=BySuccess(target=0.5))  # type: ignore[arg-type]
