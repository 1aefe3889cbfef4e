"""The directory's host and its copies: all agree, the dead stay dead, silence is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport import PeerLost
from headrace.transport.directory import DirectoryState, full_name, role_of
from headrace.transport.system import ActorRecord, DirectoryChange


def record(name: str, incarnation: str) -> ActorRecord:
    return ActorRecord(name, incarnation, f"{incarnation}|a|b", {}, 1, 1)


steps = st.lists(
    st.tuples(st.sampled_from("rrrludj"), st.sampled_from(["a/0", "a/1", "b/0"]), st.sampled_from(["p", "q", "s"])),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_copies_follow_and_joiners_catch_up(moves: list[tuple[str, str, str]]) -> None:
    host, copy = DirectoryState(), DirectoryState()
    dead: set[str] = set()
    for move, name, incarnation in moves:
        changes: list[DirectoryChange] = []
        if move == "r" and incarnation in dead:
            with pytest.raises(PeerLost, match="declared dead"):
                host.register(record(name, incarnation))
        elif move == "r":
            changes = host.register(record(name, incarnation))
        elif move == "u":
            changes = host.unregister(name, incarnation, "left")
        elif move == "l":
            changes = host.process_leaving(incarnation)
        elif move == "d":
            changes = host.process_down(incarnation, "killed")
            dead.add(incarnation)
        else:
            joiner = DirectoryState()
            for change in list(joiner.difference(host.snapshot())):
                joiner.apply(change)
            assert joiner.snapshot() == host.snapshot()
        for change in changes:
            assert change.revision == copy.revision + 1
            copy.apply(change)
        assert copy.snapshot() == host.snapshot()
        for actor in host.snapshot().actors:
            assert actor.incarnation not in dead
            member = host.members(role_of(actor.name)).get(actor.name)
            assert member is (None if host.is_leaving(actor.incarnation) else actor)
            assert copy.members(role_of(actor.name)).get(actor.name) == member
            assert host.find(actor.name) is actor, "who names one that leaves still reaches it"


def test_a_joiner_takes_over_the_revision_of_an_empty_directory() -> None:
    """Else the next change would look as if it had missed some."""
    host, joiner = DirectoryState(), DirectoryState()
    host.register(record("a/0", "p"))
    host.unregister("a/0", "p", "left")
    for change in list(joiner.difference(host.snapshot())):
        joiner.apply(change)
    assert joiner.revision == host.revision == 2


def test_a_late_joiner_forgets_what_is_gone() -> None:
    host, copy = DirectoryState(), DirectoryState()
    for change in host.register(record("a/0", "p")):
        copy.apply(change)
    host.process_down("p", "killed")
    host.register(record("a/0", "q"))
    changes = list(copy.difference(host.snapshot()))
    assert [c.down.reason for c in changes if c.down] == ["killed"]
    assert [c.up.incarnation for c in changes if c.up] == ["q"]


def test_silence_is_death() -> None:
    state = DirectoryState()
    state.register(record("a/0", "p"))
    state.heartbeat("p", 10.0)
    assert state.expire(40.0, 30.0) == []
    changes = state.expire(40.1, 30.0)
    assert changes[0].down is not None
    assert "no heartbeat for 30.1 s" in changes[0].down.reason
    assert state.find("a/0") is None
    state.heartbeat("p", 41.0)
    assert state.expire(100.0, 30.0) == [], "the dead are not declared dead again"


def test_names() -> None:
    assert (full_name("learner"), full_name("generator/3"), role_of("generator/3")) == (
        "learner/0",
        "generator/3",
        "generator",
    )
