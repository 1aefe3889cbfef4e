"""How plain values, unions and containers travel: their codecs, each checking what it is given both ways.

Built by `schema` from a message's annotations; a refusal says what was expected and what came.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.transport.errors import InvalidField
from headrace.transport.network import Frame

Encode = Callable[[Any, list[Frame]], Any]
Decode = Callable[[Any, Sequence[Frame]], Any]


class Codec(NamedTuple):
    """encode(value, frames) → msgpack values, large arrays appended to frames; decode(values, frames) → value."""

    encode: Encode
    decode: Decode


def wrong(expected: str, value: object) -> InvalidField:
    kind = type(value)
    if kind.__module__.startswith("omegaconf"):
        return InvalidField(
            f"must be {expected}, got an omegaconf {kind.__name__}; resolve the config once with OmegaConf.to_container"
        )
    return InvalidField(f"must be {expected}, got {kind.__qualname__} {value!r:.80}")


def _check_bool(value: Any, frames: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if isinstance(value, np.bool_):
        return bool(value)
    raise wrong("a bool", value)


def _check_int(value: Any, frames: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise wrong("an int", value)


def _check_float(value: Any, frames: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        return float(value)
    raise wrong("a float", value)


def _check_str(value: Any, frames: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise wrong("a str", value)


def _check_bytes(value: Any, frames: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise wrong("bytes", value)


def _check_none(value: Any, frames: Any) -> None:
    if value is not None:
        raise wrong("None", value)


SIMPLE: dict[Any, Codec] = {
    bool: Codec(_check_bool, _check_bool),
    int: Codec(_check_int, _check_int),
    float: Codec(_check_float, _check_float),
    str: Codec(_check_str, _check_str),
    bytes: Codec(_check_bytes, _check_bytes),
    type(None): Codec(_check_none, _check_none),
}


def literal(allowed: tuple[Any, ...]) -> Codec:
    def check(value: Any, frames: Any) -> Any:
        for one in allowed:
            if value == one and type(value) is type(one):
                return value
        raise wrong(f"one of {', '.join(map(repr, allowed))}", value)

    return Codec(check, check)


def enumeration(cls: type[enum.Enum]) -> Codec:
    def encode(value: Any, frames: Any) -> Any:
        if not isinstance(value, cls):
            raise wrong(f"a member of {cls.__qualname__}", value)
        return value.value

    def decode(data: Any, frames: Any) -> enum.Enum:
        try:
            return cls(data)
        except ValueError:
            raise wrong(f"a value of {cls.__qualname__}", data) from None

    return Codec(encode, decode)


def union(members: list[Codec], text: str) -> Codec:
    # None first: most unions are optional fields, and most of those are unset.
    members = sorted(members, key=lambda member: member.encode is not _check_none)

    def encode(value: Any, frames: list[Frame]) -> Any:
        for member in members:
            try:
                return member.encode(value, frames)
            except InvalidField:
                continue
        raise wrong(text, value)

    def decode(data: Any, frames: Sequence[Frame]) -> Any:
        if len(members) == 2 and members[0].encode is _check_none:
            return None if data is None else members[1].decode(data, frames)
        for member in members:
            try:
                return member.decode(data, frames)
            except InvalidField:
                continue
        raise wrong(text, data)

    return Codec(encode, decode)


def sequence(kind: type, item: Codec) -> Codec:
    encode_item, decode_item = item

    def encode(value: Any, frames: list[Frame]) -> list[Any]:
        if type(value) is not tuple and type(value) is not list:
            raise wrong(f"a {kind.__name__}", value)
        return [encode_item(one, frames) for one in value]

    def decode(data: Any, frames: Sequence[Frame]) -> Any:
        if type(data) is not list:
            raise wrong(f"a {kind.__name__}", data)
        return kind([decode_item(one, frames) for one in data])

    return Codec(encode, decode)


def fixed_tuple(items: list[Codec]) -> Codec:
    def encode(value: Any, frames: list[Frame]) -> list[Any]:
        if not isinstance(value, (tuple, list)) or len(value) != len(items):
            raise wrong(f"a tuple of {len(items)}", value)
        return [item.encode(one, frames) for item, one in zip(items, value, strict=True)]

    def decode(data: Any, frames: Sequence[Frame]) -> tuple[Any, ...]:
        if type(data) is not list or len(data) != len(items):
            raise wrong(f"a tuple of {len(items)}", data)
        return tuple(item.decode(one, frames) for item, one in zip(items, data, strict=True))

    return Codec(encode, decode)


def mapping(key: Codec, item: Codec) -> Codec:
    def encode(value: Any, frames: list[Frame]) -> dict[Any, Any]:
        if type(value) is not dict:
            raise wrong("a dict", value)
        return {key.encode(k, frames): item.encode(one, frames) for k, one in value.items()}

    def decode(data: Any, frames: Sequence[Frame]) -> dict[Any, Any]:
        if type(data) is not dict:
            raise wrong("a dict", data)
        return {key.decode(k, frames): item.decode(one, frames) for k, one in data.items()}

    return Codec(encode, decode)


_PLAIN = frozenset((str, int, float, bool, type(None), bytes))


def json_like(value: Any) -> Any:
    """A JSON-like value, unchanged but for tuples, which become lists."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return [json_like(one) for one in value]
    if kind is dict:
        for key in value:
            if type(key) is not str and type(key) is not int:
                raise wrong("a str or int key", key)
        return {key: json_like(one) for key, one in value.items()}
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if isinstance(value, enum.Enum):
        return json_like(value.value)
    raise wrong("a JSON-like value (None, bool, int, float, str, bytes, list, dict)", value)
