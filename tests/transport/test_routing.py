"""Routing policies as functions over names."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.transport.routing import Homes, least_outstanding, round_robin

members = st.lists(st.from_regex(r"g/[0-9]{1,3}", fullmatch=True), min_size=2, max_size=8, unique=True)


def idle(name: str) -> int:
    return 0


@given(members, st.text(max_size=20), st.integers(0, 100), st.data())
def test_a_key_keeps_its_member_while_that_lives(names: list[str], key: str, turn: int, data: st.DataObject) -> None:
    homes = Homes()
    home = homes.pick(names, key, idle, turn)
    assert homes.pick([*names, "g/new"], key, idle, turn + 1) == home
    gone = data.draw(st.sampled_from(names))
    left = [name for name in names if name != gone]
    moved = homes.pick(left, key, idle, turn + 2)
    assert moved == home if gone != home else moved in left


@given(members, st.integers(2, 60))
def test_new_keys_fill_all_members_evenly(names: list[str], num_keys: int) -> None:
    homes, load = Homes(), Counter(dict.fromkeys(names, 0))
    for number in range(num_keys):
        load[homes.pick(names, f"session-{number}", load.__getitem__, number)] += 1
    assert max(load.values()) - min(load.values()) <= 1


def test_a_key_leaves_a_member_that_has_fallen_behind() -> None:
    homes, load = Homes(), {"g/0": 0, "g/1": 9}
    assert homes.pick(load, "a", load.__getitem__, 0) == "g/0"
    load |= {"g/0": 12, "g/1": 8}
    assert homes.pick(load, "a", load.__getitem__, 1) == "g/0", "a little ahead of the mean is worth its cache"
    load |= {"g/0": 15, "g/1": 5}
    assert homes.pick(load, "a", load.__getitem__, 2) == "g/1"
    load |= {"g/0": 0, "g/1": 0}
    assert homes.pick(load, "a", load.__getitem__, 3) == "g/1", "it stays where it is now cached"


def test_what_is_remembered_is_bounded() -> None:
    homes = Homes(capacity=3)
    for number in range(10):
        homes.pick(["g/0"], f"session-{number}", idle, number)
    assert len(homes._homes) == 3


@given(members, st.integers(0, 100))
def test_the_least_loaded_member_and_then_by_turn(names: list[str], turn: int) -> None:
    load = {name: index for index, name in enumerate(names)}
    assert least_outstanding(names, load.__getitem__, turn) == names[0]
    even = {least_outstanding(names, lambda name: 0, turn + step) for step in range(len(names))}
    assert even == set(names)
    assert [round_robin(names, step) for step in range(len(names))] == names
