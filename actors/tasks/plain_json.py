"""Any plain Python value as JSON and back, exactly: tuples, sets, dates, fractions and non-text keys keep their type.

A task's `entry` travels as JSON values; scorers compare tuples with tuples, so a plain JSON round trip would change
grades. What has no JSON form is written as {"$type": name, "value": …}.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

_TAG = "$type"


class NotPlain(TypeError):
    """The value holds something that cannot travel as JSON; the text names its place."""


def to_json(value: object, place: str = "$") -> object:
    """JSON values only, no NaN. Raises NotPlain."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return to_json(value.item(), place)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _tagged("float", repr(float(value)))
    if isinstance(value, list):
        return [to_json(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _dict_to_json(value, place)
    return _special_to_json(value, place)


def from_json(value: object) -> object:
    """The value that `to_json` was given (numpy scalars as Python's own, arrays as lists)."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: from_json(item) for key, item in value.items()}
    return _READERS[str(value[_TAG])](from_json(value["value"]))


def _tagged(name: str, value: object) -> dict[str, object]:
    return {_TAG: name, "value": value}


def _dict_to_json(value: dict[object, object], place: str) -> object:
    if all(isinstance(key, str) for key in value) and _TAG not in value:
        return {str(key): to_json(item, f"{place}.{key}") for key, item in value.items()}
    return _tagged("dict", [to_json([key, item], f"{place}.{key}") for key, item in value.items()])


def _special_to_json(value: object, place: str) -> object:
    if isinstance(value, tuple):
        return _tagged("tuple", to_json(list(value), place))
    if isinstance(value, (set, frozenset)):
        return _tagged("set", to_json(sorted(value, key=repr), place))
    if isinstance(value, np.ndarray):
        return to_json(value.tolist(), place)
    if isinstance(value, datetime.datetime):
        return _tagged("datetime", value.isoformat())
    if isinstance(value, datetime.date):
        return _tagged("date", value.isoformat())
    if isinstance(value, Fraction):
        return _tagged("fraction", str(value))
    if isinstance(value, complex):
        return _tagged("complex", [value.real, value.imag])
    raise NotPlain(f"{place} is a {type(value).__name__}, which cannot travel as JSON")


def _read_dict(pairs: object) -> object:
    assert isinstance(pairs, list)
    return dict(pairs)


_READERS: dict[str, Callable[..., object]] = {
    "float": float,
    "dict": _read_dict,
    "tuple": tuple,
    "set": set,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "fraction": Fraction,
    "complex": lambda parts: complex(*parts),
}
