"""The mailbox against a plain model of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.mailbox import Mailbox, MailboxBound, Overflow


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["block", "drop_oldest", "refuse"]),
    st.integers(1, 5),
    st.lists(st.sampled_from("oootds"), max_size=100),
)
def test_order_bound_and_counters(overflow: Overflow, capacity: int, steps: list[str]) -> None:
    box: Mailbox[int] = Mailbox(MailboxBound(capacity, overflow), evictable=lambda item: item % 7 != 0)
    waiting: list[int] = []
    running = 0
    for number, step in enumerate(steps):
        if step in "os":
            full = len(waiting) + running >= capacity
            taken, evicted = box.offer(number, system=step == "s")
            if not full or overflow == "block" or step == "s":
                assert (taken, evicted) == (True, None)
            elif overflow == "refuse" or all(item % 7 == 0 for item in waiting):
                assert (taken, evicted) == (False, None)
            else:
                oldest = next(item for item in waiting if item % 7)
                assert (taken, evicted) == (True, oldest)
                waiting.remove(oldest)
            waiting += [number] if taken else []
        elif step == "t":
            item = box.take()
            assert item == (waiting.pop(0) if waiting else None)
            running += item is not None
        elif running:
            box.done(cancelled=number % 2 == 0)
            running -= 1
        counters = box.counters
        ended = counters.handled + counters.dropped + counters.refused + counters.cancelled
        assert counters.received == ended + box.num_waiting + running
        assert len(box) == len(waiting) + running
    assert box.drain() == waiting


def test_a_bound_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be >= 1, got 0"):
        MailboxBound(0)
    with pytest.raises(ValueError, match="one of block, drop_oldest, refuse, got 'grow'"):
        MailboxBound(overflow="grow")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        Mailbox(MailboxBound()).done()
