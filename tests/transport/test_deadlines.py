"""All deadlines behind one timer, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport import Deadlock, LoopClock, run_virtual
from headrace.transport.deadlines import Deadlines


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=60))
def test_each_rings_once_in_order_unless_cancelled(entries: list[tuple[int, bool]]) -> None:
    async def main() -> None:
        clock = LoopClock()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        rung: list[tuple[float, int]] = []
        made = [
            deadlines.at(when_s, lambda number=number: rung.append((clock.time(), number)))  # type: ignore[misc]
            for number, (when_s, _) in enumerate(entries)
        ]
        for entry, (_, cancelled) in zip(made, entries, strict=True):
            if cancelled:
                deadlines.cancel(entry)
                deadlines.cancel(entry)
        await clock.sleep(100)
        wanted = [(when_s, number) for number, (when_s, cancelled) in enumerate(entries) if not cancelled]
        assert [(round(when_s, 3), number) for when_s, number in rung] == sorted(wanted)
        assert len(deadlines) == 0

    run_virtual(main())


def test_cancelled_entries_leave_nothing_behind() -> None:
    """Asks with long deadlines that are answered at once."""

    async def main() -> None:
        deadlines = Deadlines(asyncio.get_running_loop(), LoopClock())
        keep = deadlines.at(10_000, lambda: None)
        for _ in range(20_000):
            deadlines.cancel(deadlines.at(600, lambda: None))
        assert len(deadlines) == 1
        deadlines.cancel(keep)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):  # and no timer that rings again and again
        run_virtual(main())


def test_an_entry_may_cancel_another_that_is_due_with_it_and_add_one() -> None:
    async def main() -> None:
        clock = LoopClock()
        deadlines = Deadlines(asyncio.get_running_loop(), clock)
        rung: list[str] = []

        def first() -> None:
            rung.append("first")
            deadlines.cancel(second)
            deadlines.at(clock.time() + 3, lambda: rung.append("third"))

        deadlines.at(5, first)
        second = deadlines.at(5, lambda: rung.append("second"))
        await clock.sleep(20)
        assert rung == ["first", "third"]

    run_virtual(main())
