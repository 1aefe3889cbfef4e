"""What a host keeps: the newest version, and whatever is read or waited for; the rest is given back exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.relay.holdings import Holdings


def test_the_newest_stays_and_a_superseded_one_goes_with_its_last_reader() -> None:
    holdings = Holdings()
    holdings.need("a", 1)
    holdings.need("b", 1)
    holdings.hold(1)
    holdings.hold(2)
    assert holdings.take_free() == []
    holdings.done("a")
    assert holdings.take_free() == []
    holdings.need("b", 2)
    assert holdings.take_free() == [1]
    holdings.done("b")
    assert holdings.take_free() == []
    assert holdings.newest == 2


def test_a_late_word_about_an_older_version_changes_nothing() -> None:
    holdings = Holdings()
    holdings.need("a", 1)
    holdings.need("a", 2)
    holdings.done("a", 1)
    assert holdings.needed(2)


def test_the_newest_makes_room_where_nobody_needs_it() -> None:
    holdings = Holdings()
    holdings.need("slow", 1)
    holdings.hold(1)
    holdings.hold(2)
    assert holdings.take_free(keep_newest=False) == [2]
    assert holdings.newest == 1
    assert holdings.take_free(keep_newest=False) == []


def test_a_base_stays_while_a_delta_is_decoded_upon_it() -> None:
    holdings = Holdings()
    holdings.hold(1)
    with holdings.pinned(1):
        holdings.hold(2)
        assert holdings.take_free() == []
    assert holdings.take_free() == [1]


@given(st.lists(st.tuples(st.sampled_from(["need", "done", "hold"]), st.sampled_from("abc"), st.integers(1, 6))))
def test_nothing_that_is_needed_is_given_back_and_nothing_twice(events: list[tuple[str, str, int]]) -> None:
    holdings = Holdings()
    needs: dict[str, int] = {}
    held: set[int] = set()
    for event, reader, version in events:
        if event == "need":
            holdings.need(reader, version)
            needs[reader] = version
        elif event == "done":
            holdings.done(reader)
            needs.pop(reader, None)
        else:
            holdings.hold(version)
            held.add(version)
        free = holdings.take_free()
        expected = {v for v in held if v != max(held) and v not in needs.values()}
        assert set(free) == expected
        held -= expected
        assert holdings.newest == max(held, default=None)
