"""Values as JSON and back."""

from __future__ import annotations

import datetime
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.tasks.plain_json import NotPlain, from_json, to_json

keys = st.text(max_size=5) | st.integers() | st.tuples(st.integers(), st.text(max_size=3))
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.dates()
    | st.fractions() | st.frozensets(st.integers(), max_size=3).map(set)
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda part: (
        st.lists(part, max_size=3)
        | st.lists(part, max_size=3).map(tuple)
        | st.dictionaries(keys, part, max_size=3)
        | st.dictionaries(st.just("$type"), part)
    ),
    max_leaves=12,
)


@given(values)
def test_round_trip_keeps_types(value: Any) -> None:
    travelled = from_json(json.loads(json.dumps(to_json(value), allow_nan=False)))
    assert travelled == value
    assert repr(travelled) == repr(value) or isinstance(value, (set, dict, list, tuple))


def test_special_values() -> None:
    value = {
        "x": (np.int64(3), np.float32(0.5), np.str_("s")),
        1: datetime.datetime(2024, 2, 29, 1, 2),
        "f": Fraction(1, 3),
    }
    assert from_json(json.loads(json.dumps(to_json(value)))) == value
    assert from_json(to_json(float("-inf"))) == float("-inf")
    assert from_json(to_json(np.arange(4).reshape(2, 2))) == [[0, 1], [2, 3]]


def test_what_cannot_travel_is_named_with_its_place() -> None:
    with pytest.raises(NotPlain, match=r"item\.a\[1\] is a object"):
        to_json({"a": [1, object()]}, "item")
