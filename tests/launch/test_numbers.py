"""No number of a configuration escapes: not finite or longer than 64 bits, at any depth, by its key."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.launch.compose import compose_config
from headrace.launch.numbers import check_numbers


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**23, -(10**23)])
def test_each_is_named_by_its_key(value: float) -> None:
    config = {"a": 1, "learner": {"betas": [0.9, value], "lr": value, "ok": True}, "x": {"y": [{"z": value}]}}
    problems = check_numbers(config)
    assert [p.key for p in problems] == ["learner.betas.1", "learner.lr", "x.y.0.z"]
    assert str(value)[:20] in problems[0].given


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_everything_else_passes(value: object) -> None:
    assert check_numbers({"a": value}) == []


@pytest.mark.parametrize("experiment", ["quickstart", "smollm2", "smoke"])
def test_what_is_built_in_holds_none(experiment: str) -> None:
    assert check_numbers(compose_config([f"experiment={experiment}"]).resolve(dir="runs/x", id="1")) == []
