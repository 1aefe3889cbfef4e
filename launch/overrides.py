"""Renders Python values as Hydra overrides such that parsing gives the value back. Used wherever a program launches a
run.

`str(value)` is not enough: None would become the text "None" and "null" the value None (cases K133).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def render_override(key: str, value: object, *, prefix: str = "") -> str:
    """`key=value` in Hydra's grammar. `prefix` is "", "+" (a new key) or "++" (either)."""
    return f"{prefix}{key}={render_value(value)}"


def render_value(value: object) -> str:
    """A value in Hydra's override grammar. Raises TypeError for what a configuration cannot hold."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _render_float(value)
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_render_key(key)}:{render_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(render_value(item) for item in value) + "]"
    raise TypeError(
        f"override cannot hold {type(value).__name__} ({value!r}); allowed: null, bool, int, float, str, list, dict; "
        "convert it first"
    )


def _render_float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _quote(text: str) -> str:
    """Always quoted. In Hydra's grammar a backslash is special only before a quote (or at the end of the text), so a
    run of backslashes is doubled exactly there."""
    out: list[str] = []
    backslashes = 0
    for char in text:
        if char == "\\":
            backslashes += 1
            continue
        out.append("\\" * (2 * backslashes + 1 if char == "'" else backslashes) + char)
        backslashes = 0
    out.append("\\" * (2 * backslashes))
    return "'" + "".join(out) + "'"


def _render_key(key: object) -> str:
    if not isinstance(key, str) or not key.replace("_", "a").replace("-", "a").isalnum():
        raise TypeError(f"a key of a mapping in an override must be a plain word, got {key!r}")
    return key
