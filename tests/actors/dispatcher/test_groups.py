"""Groups: the key, completion with fewer members, and verdicts by max - min."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.actors.dispatcher.groups import GroupBook, identical, judge
from headrace.actors.session import ChatMessage, Group, Sampling, SessionSpec, Task, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]


def specs(group_id: str, size: int, prompt: str = "same prompt") -> list[SessionSpec]:
    task = Task("t", "s", (ChatMessage("user", prompt),))
    return [SessionSpec(f"{group_id}-{i}", group_id, i, "train", task, Sampling()) for i in range(size)]


def test_two_groups_of_one_prompt_stay_two(make_trajectory: Make) -> None:
    """cases B49: NVIDIA-NeMo/RL#3882."""
    book = GroupBook(16)
    book.open(a := specs("a", 16), 0)
    book.open(b := specs("b", 16), 1)
    closed = []
    for left, right in zip(a, b, strict=True):
        for spec, reward in ((left, 0.0), (right, 1.0)):
            group = book.grade(make_trajectory(spec, [1], reward))
            if group is not None:
                closed.append(book.close(group.group_id))
    assert [g.group_id for g in closed] == ["a", "b"]
    assert [{t.reward for t in g.trajectories} for g in closed] == [{0.0}, {1.0}]
    assert [judge(g) for g in closed] == ["all_fail", "all_pass"]


def test_prompts_that_differ_inside_a_group_stay_one(make_trajectory: Make) -> None:
    """cases B50: NVIDIA-NeMo/RL#4013."""
    book = GroupBook(4)
    members = [specs("g", 4, prompt=f"workspace {i:032x}")[i] for i in range(4)]
    book.open(members, 0)
    results = [book.grade(make_trajectory(spec, [1], float(spec.member % 2))) for spec in members]
    assert results[:3] == [None] * 3
    assert results[3] is not None
    assert len(book.close("g").trajectories) == 4


@pytest.mark.parametrize(
    ("rewards", "verdict"),
    [
        ([0.1, 0.1, 0.1], "all_equal"),
        ([1.0, 1.0, 1.0, 1.0], "all_pass"),
        ([0.0, 0.0], "all_fail"),
        ([0.0, 1.0], "useful"),
        ([0.1, 0.1 + 1e-9], "all_equal"),
        ([-1.0, -1.0], "all_fail"),
    ],
)
def test_variance_is_judged_by_max_minus_min(make_trajectory: Make, rewards: list[float], verdict: str) -> None:
    """cases B47: three rewards of 0.1 have a standard deviation above 0 in float64, and no variance."""
    members = specs("g", len(rewards))
    group = Group("g", tuple(make_trajectory(s, [1], r) for s, r in zip(members, rewards, strict=True)))
    assert judge(group) == verdict


def test_a_group_goes_on_without_a_lost_member_until_too_few_are_left(make_trajectory: Make) -> None:
    book = GroupBook(3)
    members = specs("g", 3)
    book.open(members, 0)
    assert book.lose(members[0]) is None
    assert book.grade(make_trajectory(members[1], [1], 1.0)) is None
    group = book.lose(members[2])
    assert group is not None
    assert book.hopeless(group)


def test_identical_sessions_are_noticed(make_trajectory: Make) -> None:
    """cases B53: a warning where all completions of a group are byte-identical."""
    members = specs("g", 2)
    same = Group("g", (make_trajectory(members[0], [1], 1.0), make_trajectory(members[0], [1], 0.0)))
    different = Group("g", tuple(make_trajectory(s, [1], 1.0) for s in members))
    assert identical(same)
    assert not identical(different)
