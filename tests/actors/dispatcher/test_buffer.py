"""The buffer: orders of consumption, whole groups, nothing lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.dispatcher.buffer import ReadyBuffer, ReadyGroup
from headrace.actors.session import ChatMessage, Group, Sampling, SessionSpec, Task, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]
TASK = Task("t", "s", (ChatMessage("user", "x"),))


@pytest.fixture(scope="module")
def trajectory() -> Trajectory:
    import numpy as np

    empty = np.zeros(0)
    spec = SessionSpec("s", "g", 0, "train", TASK, Sampling())
    return Trajectory(spec, empty, empty, empty, empty, (), (), "done")


def ready(trajectory: Trajectory, order: int, *, arrival: int = 0, oldest: int = 1, size: int = 2) -> ReadyGroup:
    return ReadyGroup(Group(f"g{order}", (trajectory,) * size), order, arrival, oldest, 0)


def test_ten_groups_batches_of_three_give_nine_and_one_stays(trajectory: Trajectory) -> None:
    """cases F101: THUDM/slime#2238."""
    buffer = ReadyBuffer()
    for order in range(10):
        buffer.push(ready(trajectory, order))
    taken = []
    for _ in range(3):
        batch = buffer.take(batch_sessions=6, group_size=2)
        assert batch is not None
        assert len(batch) == 3
        taken += [r.group.group_id for r in batch]
    assert len(set(taken)) == 9
    assert len(buffer) == 1
    assert buffer.take(batch_sessions=6, group_size=2) is None
    assert len(buffer) == 1


def test_orders_of_consumption(trajectory: Trajectory) -> None:
    groups = [
        ready(trajectory, 0, arrival=2, oldest=5),
        ready(trajectory, 1, arrival=0, oldest=7),
        ready(trajectory, 2, arrival=1, oldest=3),
    ]
    expected = {"oldest_ready": [2, 0, 1], "fifo": [1, 2, 0], "newest": [1, 0, 2]}
    for consumption, orders in expected.items():
        buffer = ReadyBuffer(consumption)  # type: ignore[arg-type]
        for group in groups:
            buffer.push(group)
        eaten = [batch[0].order for _ in range(3) if (batch := buffer.take(batch_sessions=2, group_size=2))]
        assert eaten == orders, consumption


def test_a_group_that_lost_a_member_still_fills_a_batch(trajectory: Trajectory) -> None:
    """Nothing of size 8 fits into the one session that is missing: the batch is the nearest whole groups."""
    buffer = ReadyBuffer()
    buffer.push(ready(trajectory, 0, size=8))
    assert buffer.take(batch_sessions=16, group_size=8) is None
    buffer.push(ready(trajectory, 1, size=7))
    batch = buffer.take(batch_sessions=16, group_size=8)
    assert batch is not None
    assert sum(r.num_sessions for r in batch) == 15


@settings(deadline=None)
@given(st.lists(st.integers(2, 4), max_size=40), st.integers(1, 5))
def test_batches_are_whole_never_too_large_and_nothing_is_lost(sizes: list[int], groups_per_batch: int) -> None:
    buffer = ReadyBuffer()
    spec = SessionSpec("s", "g", 0, "train", TASK, Sampling())
    import numpy as np

    empty = np.zeros(0)
    one = Trajectory(spec, empty, empty, empty, empty, (), (), "done")
    for order, size in enumerate(sizes):
        buffer.push(ready(one, order, size=size))
    taken: list[int] = []
    batch_sessions = 4 * groups_per_batch
    while (batch := buffer.take(batch_sessions=batch_sessions, group_size=4)) is not None:
        total = sum(r.num_sessions for r in batch)
        assert batch_sessions - 4 < total <= batch_sessions
        taken += [r.order for r in batch]
    left = [r.order for r in buffer.remove_where(lambda _: True)]
    assert sorted(taken + left) == list(range(len(sizes)))
