"""Messages to bytes and back: msgpack for the fields, a raw frame for each large array. Never pickles, never evaluates.

Called by the links (across processes) and by a runtime with encode_local. Raises BadMessage's children only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from headrace.transport.errors import BadMessage, CorruptFrame, InvalidField, Oversize
from headrace.transport.message import type_named, type_of
from headrace.transport.network import HEADER_ROOM_BYTES, Frame
from headrace.transport.schema import codec_of
from headrace.transport.values import Decode, Encode

MAX_HEADER_BYTES = 256 * 1024**2
"""The msgpack part of one message, at both ends; arrays of 32 KiB and more do not count."""
_WALKED_FROM_BYTES = 4 * 1024
"""Smaller frames can declare little that is not there."""


_encoders: dict[type, tuple[str, int, Encode]] = {}
_decoders: dict[tuple[str, int], Decode] = {}


def encode(message: object) -> tuple[list[Any] | None, list[Frame]]:
    """[name, version, fields] as msgpack values (None stands for the reply None), and the frames of its large arrays.
    Raises UnknownMessage for an unregistered class, InvalidField for a field that is not what it says."""
    frames: list[Frame] = []
    if message is None:
        return None, frames
    name, version, encode_fields = _encoders.get(type(message)) or _encoder(type(message))
    try:
        return [name, version, encode_fields(message, frames)], frames
    except RecursionError:
        raise InvalidField(f"message {name!r} is nested too deeply (or contains itself)") from None
    except BadMessage:
        raise
    except Exception as error:  # a value with methods of its own: the message's defect, not its handler's or its link's
        raise InvalidField(f"message {name!r} cannot be encoded: {type(error).__name__}: {error}") from error


def decode(payload: object, frames: Sequence[Frame]) -> Any:
    """Raises UnknownMessage, WrongVersion, InvalidField."""
    if payload is None:
        return None
    if type(payload) is not list or len(payload) != 3:
        raise InvalidField("a message travels as [name, version, fields]")
    name, version, fields = payload
    if type(name) is not str or type(version) is not int:
        raise InvalidField("a message travels as [name, version, fields]")
    try:
        return (_decoders.get((name, version)) or _decoder(name, version))(fields, frames)
    except RecursionError:
        raise InvalidField(f"message {name!r} is nested too deeply") from None
    except BadMessage:
        raise
    except Exception as error:  # an annotation that cannot travel, a defect of the class: told to the sender, too
        text = f"message {name!r} cannot be decoded here: {type(error).__name__}: {error}"
        raise InvalidField(text) from error


def _encoder(cls: type) -> tuple[str, int, Encode]:
    registered = type_of(cls)
    found = _encoders[cls] = (registered.name, registered.version, codec_of(cls).encode)
    return found


def _decoder(name: str, version: int) -> Decode:
    found = _decoders[name, version] = codec_of(type_named(name, version).cls).decode
    return found


_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def pack(values: Any) -> bytes:
    """msgpack bytes. Raises InvalidField where a value does not fit (an int over 64 bits, a lone surrogate)."""
    try:
        packed: bytes = _pack(values)
    except (OverflowError, ValueError, TypeError, UnicodeEncodeError) as error:
        # The Packer keeps what it had written before the error.
        _reset_packer()
        raise InvalidField(f"a value does not fit msgpack: {error}") from error
    if len(packed) > MAX_HEADER_BYTES:
        raise Oversize(
            f"the fields of a message take {len(packed)} bytes, at most {MAX_HEADER_BYTES}; use arrays for bulk"
        )
    return packed


def _reset_packer() -> None:
    global _pack
    _pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def unpack(frame: Frame) -> Any:
    """Raises CorruptFrame for bytes that are not one msgpack value of plain types, before much memory is taken: a
    container takes as many places as its header declares, so a frame is walked first to see that all of them are there.
    What is made is then at most about ninety times the frame (a byte can be an empty map)."""
    try:
        if len(frame) >= _WALKED_FROM_BYTES:
            _walk(frame)
        return msgpack.unpackb(frame, raw=False, strict_map_key=False, use_list=True, ext_hook=_no_extensions)
    except Exception as error:  # msgpack raises ValueError and a family of its own on hostile bytes
        raise CorruptFrame(f"not a frame of this protocol: {type(error).__name__}: {error}") from error


def _walk(frame: Frame) -> None:
    """To the frame's end without making anything of it."""
    if len(frame) > MAX_HEADER_BYTES + HEADER_ROOM_BYTES:
        raise ValueError(f"{len(frame)} bytes of msgpack, at most {MAX_HEADER_BYTES}")
    walker = msgpack.Unpacker(max_buffer_size=len(frame))
    walker.feed(frame)
    walker.skip()


def _no_extensions(code: int, data: bytes) -> Any:
    raise ValueError(f"msgpack extension type {code}")


def round_trip(message: Any) -> Any:
    """What a receiver in another process would see."""
    payload, frames = encode(message)
    return decode(unpack(pack(payload)), [bytes(frame) for frame in frames])
