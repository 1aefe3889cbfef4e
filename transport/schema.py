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
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.transport import arrays, values
from headrace.transport.errors import InvalidField
from headrace.transport.network import Frame
from headrace.transport.values import Codec, Decode, Encode


class _TorchStandIn:
    """Stands for the module torch in annotations, so that naming a tensor does not import it."""

    class Tensor:
        pass


Field = tuple[str, type | None, Encode, Decode]
"""Name, the plain type whose values travel as they are (None: no such), and the way there and back for all others."""

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
    fields: list[Field] = []
    codec = _compiled[cls] = Codec(_dataclass_encoder(cls, fields), _dataclass_decoder(cls, fields))
    try:
        hints = typing.get_type_hints(cls, localns={"torch": _TorchStandIn})
        for field in dataclasses.fields(cls):
            if not field.init:
                raise TypeError(f"{cls.__qualname__}.{field.name} has init=False and cannot be rebuilt by a receiver")
            one = _codec(hints[field.name], f"{cls.__qualname__}.{field.name}")
            exact = hints[field.name] if hints[field.name] in values.SIMPLE else None
            fields.append((field.name, exact, one.encode, one.decode))
    except Exception:
        del _compiled[cls]
        raise
    return codec


def _dataclass_encoder(cls: type, fields: list[Field]) -> Encode:
    def encode(value: Any, frames: list[Frame]) -> dict[str, Any]:
        if type(value) is not cls:
            raise values.wrong(cls.__qualname__, value)
        encoded = {}
        name = ""
        try:
            for name, exact, encode_field, _ in fields:
                one = getattr(value, name)
                encoded[name] = one if type(one) is exact else encode_field(one, frames)
        except InvalidField as error:
            raise _inside(cls, name, error) from None
        return encoded

    return encode


def _dataclass_decoder(cls: type, fields: list[Field]) -> Decode:
    def decode(data: Any, frames: Sequence[Frame]) -> Any:
        if type(data) is not dict:
            raise values.wrong(f"a map of {cls.__qualname__}'s fields", data)
        if len(data) != len(fields):
            raise _field_mismatch(cls, fields, data)
        arguments = {}
        name = ""
        try:
            for name, exact, _, decode_field in fields:
                one = data[name]
                arguments[name] = one if type(one) is exact else decode_field(one, frames)
        except InvalidField as error:
            raise _inside(cls, name, error) from None
        except KeyError:
            raise _field_mismatch(cls, fields, data) from None
        try:
            return cls(**arguments)
        except (ValueError, TypeError) as error:  # __post_init__ of the class refused its values
            raise InvalidField(f"{cls.__qualname__}: {error}") from error

    return decode


def _inside(cls: type, name: str, error: InvalidField) -> InvalidField:
    return InvalidField(f"{cls.__qualname__}.{name}: {error.text}")


def _field_mismatch(cls: type, fields: list[Field], data: dict[Any, Any]) -> InvalidField:
    wanted, got = {name for name, *_ in fields}, set(data)
    missing = ", ".join(sorted(wanted - got)) or "none"
    extra = ", ".join(sorted(f"{key!r:.50}" for key in got - wanted)) or "none"
    return InvalidField(f"{cls.__qualname__}: missing fields: {missing}; fields that it does not have: {extra}")


# --- one annotation -------------------------------------------------------------------------------------------------


def _codec(hint: Any, where: str) -> Codec:
    simple = values.SIMPLE.get(hint) if isinstance(hint, type) else None
    if simple is not None:
        return simple
    origin = typing.get_origin(hint)
    if origin is typing.Annotated or isinstance(hint, typing.NewType):
        return _codec(hint.__supertype__ if origin is None else hint.__origin__, where)
    if origin is typing.Literal:
        return values.literal(typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return values.union([_codec(member, where) for member in typing.get_args(hint)], str(hint))
    if origin in (tuple, list, dict):
        return _container(origin, typing.get_args(hint), where)
    if hint is typing.Any or hint is object:
        return Codec(lambda value, frames: values.json_like(value), lambda data, frames: values.json_like(data))
    if origin is np.ndarray or (hint is np.ndarray):
        return Codec(arrays.encode_numpy, arrays.decode_numpy)
    if isinstance(hint, type):
        return _class(hint, where)
    raise _not_allowed(hint, where)


def _class(hint: type, where: str) -> Codec:
    if hint is _TorchStandIn.Tensor or (hint.__module__, hint.__name__) == ("torch", "Tensor"):
        return Codec(arrays.encode_torch, arrays.decode_torch)
    if issubclass(hint, enum.Enum):
        return values.enumeration(hint)
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


# --- containers -----------------------------------------------------------------------------------------------------


def _container(origin: type, args: tuple[Any, ...], where: str) -> Codec:
    if origin is dict:
        if len(args) != 2 or args[0] not in (str, int):
            raise TypeError(f"{where}: a dict in a message is dict[str, X] or dict[int, X], got dict{list(args)}")
        return values.mapping(values.SIMPLE[args[0]], _codec(args[1], where))
    if origin is list or (len(args) == 2 and args[1] is Ellipsis):
        return values.sequence(origin, _codec(args[0], where))
    return values.fixed_tuple([_codec(arg, where) for arg in args if arg != ()])
