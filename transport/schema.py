"""From a dataclass's annotations to its encoder and decoder, compiled at first use, checking every field both ways.

A dataclass becomes a map of its fields. Allowed: bool, int, float (an int is taken; NaN and infinities kept), str,
bytes, None, unions, Literal, enumerations, tuple[X, ...], tuple[X, Y], list[X], dict[str | int, X], `object` (JSON-like
values), numpy arrays, torch tensors, and frozen dataclasses of these. Anything else is a TypeError when the class is
first used, naming the field. Nothing is ever pickled.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.transport import arrays
from headrace.transport.errors import InvalidField
from headrace.transport.network import Frame

Encode = Callable[[Any, list[Frame]], Any]
Decode = Callable[[Any, Sequence[Frame]], Any]


class Codec(NamedTuple):
    """encode(value, frames) → msgpack values, large arrays appended to frames; decode(values, frames) → value."""

    encode: Encode
    decode: Decode


class _TorchStandIn:
    """Stands for the module torch in annotations, so that naming a tensor does not import it."""

    class Tensor:
        pass


_compiled: dict[type, Codec] = {}


def codec_of(cls: type) -> Codec:
    """The codec of a frozen dataclass. Raises TypeError where a field's annotation is not allowed."""
    codec = _compiled.get(cls)
    return _compile_dataclass(cls) if codec is None else codec


# --- dataclasses ----------------------------------------------------------------------------------------------------


def _compile_dataclass(cls: type) -> Codec:
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(
            f"{cls.__qualname__} is in a message and must be frozen; use @dataclass(frozen=True, slots=True)"
        )
    # Registered before its fields are compiled, so that a class may contain itself.
    fields: list[tuple[str, Encode, Decode]] = []
    codec = _compiled[cls] = Codec(_dataclass_encoder(cls, fields), _dataclass_decoder(cls, fields))
    try:
        hints = typing.get_type_hints(cls, localns={"torch": _TorchStandIn})
        for field in dataclasses.fields(cls):
            if not field.init:
                raise TypeError(f"{cls.__qualname__}.{field.name} has init=False and cannot be rebuilt by a receiver")
            one = _codec(hints[field.name], f"{cls.__qualname__}.{field.name}")
            fields.append((field.name, one.encode, one.decode))
    except Exception:
        del _compiled[cls]
        raise
    return codec


def _dataclass_encoder(cls: type, fields: list[tuple[str, Encode, Decode]]) -> Encode:
    def encode(value: Any, frames: list[Frame]) -> dict[str, Any]:
        if type(value) is not cls:
            raise _wrong(cls.__qualname__, value)
        encoded = {}
        name = ""
        try:
            for name, encode_field, _ in fields:
                encoded[name] = encode_field(getattr(value, name), frames)
        except InvalidField as error:
            raise _inside(cls, name, error) from None
        return encoded

    return encode


def _dataclass_decoder(cls: type, fields: list[tuple[str, Encode, Decode]]) -> Decode:
    def decode(data: Any, frames: Sequence[Frame]) -> Any:
        if type(data) is not dict:
            raise _wrong(f"a map of {cls.__qualname__}'s fields", data)
        if len(data) != len(fields):
            raise _field_mismatch(cls, fields, data)
        values = {}
        name = ""
        try:
            for name, _, decode_field in fields:
                values[name] = decode_field(data[name], frames)
        except InvalidField as error:
            raise _inside(cls, name, error) from None
        except KeyError:
            raise _field_mismatch(cls, fields, data) from None
        try:
            return cls(**values)
        except (ValueError, TypeError) as error:  # __post_init__ of the class refused its values
            raise InvalidField(f"{cls.__qualname__}: {error}") from error

    return decode


def _inside(cls: type, name: str, error: InvalidField) -> InvalidField:
    return InvalidField(f"{cls.__qualname__}.{name}: {error.text}")


def _field_mismatch(cls: type, fields: list[tuple[str, Encode, Decode]], data: dict[Any, Any]) -> InvalidField:
    wanted, got = {name for name, _, _ in fields}, set(data)
    missing = ", ".join(sorted(wanted - got)) or "none"
    extra = ", ".join(sorted(f"{key!r:.50}" for key in got - wanted)) or "none"
    return InvalidField(f"{cls.__qualname__}: missing fields: {missing}; fields that it does not have: {extra}")


def _wrong(expected: str, value: object) -> InvalidField:
    kind = type(value)
    if kind.__module__.startswith("omegaconf"):
        return InvalidField(
            f"must be {expected}, got an omegaconf {kind.__name__}; resolve the config once with OmegaConf.to_container"
        )
    return InvalidField(f"must be {expected}, got {kind.__qualname__} {value!r:.80}")


# --- one annotation -------------------------------------------------------------------------------------------------


def _codec(hint: Any, where: str) -> Codec:
    simple = _SIMPLE.get(hint) if isinstance(hint, type) else None
    if simple is not None:
        return simple
    origin = typing.get_origin(hint)
    if origin is typing.Annotated or isinstance(hint, typing.NewType):
        return _codec(hint.__supertype__ if origin is None else hint.__origin__, where)
    if origin is typing.Literal:
        return _literal(typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return _union([_codec(member, where) for member in typing.get_args(hint)], str(hint))
    if origin in (tuple, list, dict):
        return _container(origin, typing.get_args(hint), where)
    if hint is typing.Any or hint is object:
        return Codec(lambda value, frames: _json(value), lambda data, frames: _json(data))
    if origin is np.ndarray or (hint is np.ndarray):
        return Codec(arrays.encode_numpy, arrays.decode_numpy)
    if isinstance(hint, type):
        return _class(hint, where)
    raise _not_allowed(hint, where)


def _class(hint: type, where: str) -> Codec:
    if hint is _TorchStandIn.Tensor or (hint.__module__, hint.__name__) == ("torch", "Tensor"):
        return Codec(arrays.encode_torch, arrays.decode_torch)
    if issubclass(hint, enum.Enum):
        return _enumeration(hint)
    if dataclasses.is_dataclass(hint):
        # Looked up at use: the class may be the one that is being compiled, or be defined later.
        return Codec(
            lambda value, frames: codec_of(hint).encode(value, frames),
            lambda data, frames: codec_of(hint).decode(data, frames),
        )
    raise _not_allowed(hint, where)


def _not_allowed(hint: Any, where: str) -> TypeError:
    return TypeError(
        f"{where}: {hint} cannot be in a message; allowed are bool, int, float, str, bytes, None, unions, Literal, "
        f"enumerations, tuple, list, dict[str | int, X], object (JSON-like), numpy arrays, torch tensors and frozen "
        f"dataclasses"
    )


def _check_bool(value: Any, frames: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if isinstance(value, np.bool_):
        return bool(value)
    raise _wrong("a bool", value)


def _check_int(value: Any, frames: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise _wrong("an int", value)


def _check_float(value: Any, frames: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        return float(value)
    raise _wrong("a float", value)


def _check_str(value: Any, frames: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise _wrong("a str", value)


def _check_bytes(value: Any, frames: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise _wrong("bytes", value)


def _check_none(value: Any, frames: Any) -> None:
    if value is not None:
        raise _wrong("None", value)


_SIMPLE: dict[Any, Codec] = {
    bool: Codec(_check_bool, _check_bool),
    int: Codec(_check_int, _check_int),
    float: Codec(_check_float, _check_float),
    str: Codec(_check_str, _check_str),
    bytes: Codec(_check_bytes, _check_bytes),
    type(None): Codec(_check_none, _check_none),
}


def _literal(allowed: tuple[Any, ...]) -> Codec:
    def check(value: Any, frames: Any) -> Any:
        for one in allowed:
            if value == one and type(value) is type(one):
                return value
        raise _wrong(f"one of {', '.join(map(repr, allowed))}", value)

    return Codec(check, check)


def _enumeration(cls: type[enum.Enum]) -> Codec:
    def encode(value: Any, frames: Any) -> Any:
        if not isinstance(value, cls):
            raise _wrong(f"a member of {cls.__qualname__}", value)
        return value.value

    def decode(data: Any, frames: Any) -> enum.Enum:
        try:
            return cls(data)
        except ValueError:
            raise _wrong(f"a value of {cls.__qualname__}", data) from None

    return Codec(encode, decode)


def _union(members: list[Codec], text: str) -> Codec:
    # None first: most unions are optional fields, and most of those are unset.
    members = sorted(members, key=lambda member: member.encode is not _check_none)

    def encode(value: Any, frames: list[Frame]) -> Any:
        for member in members:
            try:
                return member.encode(value, frames)
            except InvalidField:
                continue
        raise _wrong(text, value)

    def decode(data: Any, frames: Sequence[Frame]) -> Any:
        if len(members) == 2 and members[0].encode is _check_none:
            return None if data is None else members[1].decode(data, frames)
        for member in members:
            try:
                return member.decode(data, frames)
            except InvalidField:
                continue
        raise _wrong(text, data)

    return Codec(encode, decode)


# --- containers -----------------------------------------------------------------------------------------------------


def _container(origin: type, args: tuple[Any, ...], where: str) -> Codec:
    if origin is dict:
        if len(args) != 2 or args[0] not in (str, int):
            raise TypeError(f"{where}: a dict in a message is dict[str, X] or dict[int, X], got dict{list(args)}")
        return _mapping(_SIMPLE[args[0]], _codec(args[1], where))
    if origin is list or (len(args) == 2 and args[1] is Ellipsis):
        return _sequence(origin, _codec(args[0], where))
    return _fixed_tuple([_codec(arg, where) for arg in args if arg != ()])


def _sequence(kind: type, item: Codec) -> Codec:
    encode_item, decode_item = item

    def encode(value: Any, frames: list[Frame]) -> list[Any]:
        if type(value) is not tuple and type(value) is not list:
            raise _wrong(f"a {kind.__name__}", value)
        return [encode_item(one, frames) for one in value]

    def decode(data: Any, frames: Sequence[Frame]) -> Any:
        if type(data) is not list:
            raise _wrong(f"a {kind.__name__}", data)
        return kind([decode_item(one, frames) for one in data])

    return Codec(encode, decode)


def _fixed_tuple(items: list[Codec]) -> Codec:
    def encode(value: Any, frames: list[Frame]) -> list[Any]:
        if not isinstance(value, (tuple, list)) or len(value) != len(items):
            raise _wrong(f"a tuple of {len(items)}", value)
        return [item.encode(one, frames) for item, one in zip(items, value, strict=True)]

    def decode(data: Any, frames: Sequence[Frame]) -> tuple[Any, ...]:
        if type(data) is not list or len(data) != len(items):
            raise _wrong(f"a tuple of {len(items)}", data)
        return tuple(item.decode(one, frames) for item, one in zip(items, data, strict=True))

    return Codec(encode, decode)


def _mapping(key: Codec, item: Codec) -> Codec:
    def encode(value: Any, frames: list[Frame]) -> dict[Any, Any]:
        if type(value) is not dict:
            raise _wrong("a dict", value)
        return {key.encode(k, frames): item.encode(one, frames) for k, one in value.items()}

    def decode(data: Any, frames: Sequence[Frame]) -> dict[Any, Any]:
        if type(data) is not dict:
            raise _wrong("a dict", data)
        return {key.decode(k, frames): item.decode(one, frames) for k, one in data.items()}

    return Codec(encode, decode)


_PLAIN = frozenset((str, int, float, bool, type(None), bytes))


def _json(value: Any) -> Any:
    """A JSON-like value, unchanged but for tuples, which become lists."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return [_json(one) for one in value]
    if kind is dict:
        for key in value:
            if type(key) is not str and type(key) is not int:
                raise _wrong("a str or int key", key)
        return {key: _json(one) for key, one in value.items()}
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if isinstance(value, enum.Enum):
        return _json(value.value)
    raise _wrong("a JSON-like value (None, bool, int, float, str, bytes, list, dict)", value)
