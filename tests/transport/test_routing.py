"""Routing policies as functions over names."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.transport.routing import least_outstanding, round_robin, sticky

members = st.lists(st.from_regex(r"g/[0-9]{1,3}", fullmatch=True), min_size=2, max_size=8, unique=True)


@given(members, st.text(max_size=20), st.data())
def test_a_key_moves_only_when_its_member_leaves(names: list[str], key: str, data: st.DataObject) -> None:
    home = sticky(names, key)
    gone = data.draw(st.sampled_from(names))
    left = [name for name in names if name != gone]
    if gone != home:
        assert sticky(left, key) == home
    assert sticky(list(reversed(names)), key) == home
    assert sticky([*names, "g/new"], key) in (home, "g/new")


def test_keys_spread_over_the_members() -> None:
    counts = Counter(sticky(["g/0", "g/1", "g/2", "g/3"], f"session-{number}") for number in range(4000))
    assert all(800 < count < 1200 for count in counts.values())


@given(members, st.integers(0, 100))
def test_the_least_loaded_member_and_then_by_turn(names: list[str], turn: int) -> None:
    load = {name: index for index, name in enumerate(names)}
    assert least_outstanding(names, load.__getitem__, turn) == names[0]
    even = {least_outstanding(names, lambda name: 0, turn + step) for step in range(len(names))}
    assert even == set(names)
    assert [round_robin(names, step) for step in range(len(names))] == names
