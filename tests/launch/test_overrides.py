"""Overrides that a program renders parse back to what they were."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from headrace.launch.overrides import render_override, render_value

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=12
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
KEYS = st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def parse(text: str) -> object:
    return OverridesParser.create().parse_override(text).value()


def plain(value: object) -> object:
    """Hydra's parser leaves quoted strings as objects of its own inside containers."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    text = getattr(value, "text", None)
    return value if text is None else text


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        (None, "null"),
        (True, "true"),
        ("null", "'null'"),
        ("1,2", "'1,2'"),
        ("it's", r"'it\'s'"),
        ([1, [2, "a"]], "[1,[2,'a']]"),
    ],
)
def test_rendering(value: object, rendered: str) -> None:
    """cases K133: NVIDIA-NeMo/nemo-platform#1203."""
    assert render_value(value) == rendered


@pytest.mark.parametrize(
    "text", ["None", "yes", "off", "007", "0x10", "1e-4", "${x}", "a=b", "\\", "a\\'", "\\\\'", "", " a "]
)
def test_texts_stay_texts(text: str) -> None:
    """cases K133: what looks like another type in one grammar or another comes back as the text it was."""
    assert plain(parse(render_override("key", text))) == text


@given(VALUES)
def test_parse_is_the_inverse_of_render(value: object) -> None:
    """cases K133."""
    back = plain(parse(render_override("key", value)))
    assert back == value
    assert type(back) is type(value)


def test_what_a_configuration_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold object"):
        render_value(object())
