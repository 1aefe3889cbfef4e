"""The time accounting: always adds up, and blames the oldest wait."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.activity import Activity, Wait


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("beWwu"), st.integers(0, 9)), max_size=80))
def test_busy_blocked_and_idle_add_up(moves: list[tuple[str, int]]) -> None:
    clock = Hand()
    activity = Activity(clock)
    depth, tickets = 0, []
    model = {"busy": 0.0, "idle": 0.0}
    for move, seconds in moves:
        state = "busy" if depth else (tickets[0][1] if tickets else "idle")
        model[state] = model.get(state, 0.0) + seconds
        clock.now_s += seconds
        if move == "b":
            activity.begin()
            depth += 1
        elif move == "e" and depth:
            activity.end()
            depth -= 1
        elif move in "Ww":
            role = "generator" if move == "W" else "grader"
            tickets.append((activity.block(role), role))
        elif move == "u" and tickets:
            ticket, _ = tickets.pop(seconds % len(tickets))
            activity.unblock(ticket)
    totals = activity.totals()
    assert totals.wall_s == pytest.approx(totals.busy_s + totals.idle_s + sum(totals.blocked_s.values()))
    assert totals.busy_s == model.pop("busy")
    assert totals.idle_s == model.pop("idle")
    assert {role: s for role, s in totals.blocked_s.items() if s} == {role: s for role, s in model.items() if s}


def test_steps_of_a_coroutine_are_busy_and_its_waits_are_not() -> None:
    clock = Hand()
    slow: list[tuple[str, float]] = []
    activity = Activity(clock, lambda label, took_s: slow.append((label, took_s)))

    async def work() -> str:
        clock.now_s += 2
        await asyncio.sleep(0)
        with activity.working("off the loop"):
            await asyncio.sleep(0)
            clock.now_s += 5
        return "done"

    async def main() -> str:
        task = asyncio.ensure_future(activity.drive(work(), "work"))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        clock.now_s += 10
        return await task

    assert asyncio.run(main()) == "done"
    totals = activity.totals()
    assert (totals.busy_s, totals.idle_s, totals.working_s) == (7.0, 10.0, {"off the loop": 5.0})
    assert slow == [("work", 2.0), ("work", 5.0)]


def test_waits_name_the_peer_the_message_and_since_when() -> None:
    clock = Hand()
    activity = Activity(clock)
    first = activity.block("generator", "generator/3", Hand)
    clock.now_s += 5
    activity.block("grader")
    assert activity.waits() == [Wait("generator/3", "Hand", 100.0), Wait("grader", "", 105.0)]
    assert activity.waits(limit=1) == [Wait("generator/3", "Hand", 100.0)]
    activity.unblock(first)
    assert activity.waiting_on() == "grader"


def test_the_step_that_runs_has_a_name() -> None:
    activity = Activity(Hand())
    seen: list[str | None] = []

    async def inner() -> None:
        seen.append(activity.step)

    async def outer() -> None:
        seen.append(activity.step)
        await activity.drive(inner(), "inner")
        seen.append(activity.step)

    asyncio.run(activity.drive(outer(), "outer"))  # type: ignore[arg-type]
    assert seen == ["outer", "inner", "outer"]
    assert activity.step is None
