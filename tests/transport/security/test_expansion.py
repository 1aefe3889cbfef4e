"""A small frame must not make gigabytes: what unpacking takes is bounded by what came (issue: decompression bombs)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import msgpack
import numpy as np
import pytest

from headrace.transport import InvalidField, codec, message
from headrace.transport.arrays import decode_numpy, decode_torch
from headrace.transport.errors import CorruptFrame

MIB = 1024 * 1024


@message("expansion.fussy")
@dataclass(frozen=True, slots=True)
class Fussy:
    number: int

    def __post_init__(self) -> None:
        if self.number == 0:
            raise ZeroDivisionError("not a ValueError")


def peak_bytes(body: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        body()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def declared(header: bytes, size: int, depth: int) -> bytes:
    """Containers in each other, each declaring as many members as the frame has bytes."""
    inner = (header + size.to_bytes(4, "big")) * depth
    return inner + b"\xc0" * (size - len(inner))


@pytest.mark.parametrize("size", [3000, 64 * 1024, 4 * MIB])
@pytest.mark.parametrize("header", [b"\xdd", b"\xdf"])
def test_declared_lengths_take_no_memory(size: int, header: bytes) -> None:
    """msgpack makes room for each declared array at once: 500 of 4 Mi places in each other are 16 GiB."""
    frame = declared(header, size - 3000, 500) if size > 3000 else declared(header, size - 1, 500)

    def refused() -> None:
        with pytest.raises(CorruptFrame):
            codec.unpack(frame)

    assert peak_bytes(refused) < 24 * MIB


@pytest.mark.parametrize("content", [b"\x80", b"\x90", b"\xc0", b"\xcd\x7f\xff", b"\xa2ab", b"\x91\xc0"])
def test_what_is_made_of_a_whole_frame_is_bounded(content: bytes) -> None:
    num = MIB // len(content)
    frame = b"\xdd" + num.to_bytes(4, "big") + content * num
    assert peak_bytes(lambda: codec.unpack(frame)) < 100 * len(frame)


def test_headers_have_a_limit_and_depth_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_HEADER_BYTES", MIB)
    with pytest.raises(CorruptFrame, match="at most 1048576"):
        codec.unpack(msgpack.packb(b"x" * 2 * MIB))
    for size in (3000, 100_000):
        with pytest.raises(CorruptFrame):
            codec.unpack(b"\x91" * size + b"\xc0")
    for frame in (b"\xc0" * 5000, msgpack.packb("x" * 5000) + b"\xc0", b""):
        with pytest.raises(CorruptFrame):
            codec.unpack(frame)
    assert codec.unpack(memoryview(msgpack.packb(["x" * 5000]))) == ["x" * 5000]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("<S0", [2**33]), ("<U0", [2**40, 2]), ("|S0", [1]), ("<f4", [0, 2**63]), ("<f4", [0] + [2**62] * 60)],
)
def test_arrays_of_nothing_take_nothing(name: str, shape: list[int]) -> None:
    """Found by reading: numpy makes a byte of each element that has none."""
    with pytest.raises(InvalidField):
        decode_numpy([name, shape, b""], [])
    assert decode_numpy(["|S0", [0, 3], b""], []).shape == (0, 3)


def test_tensors_of_nothing_take_nothing() -> None:
    for shape in ([0, 2**63], [0, 2**62, 2**62]):
        with pytest.raises(InvalidField):
            decode_torch(["float32", shape, b""], [])
    assert decode_torch(["float32", [0, 3], b""], []).shape == (0, 3)


def test_what_a_class_raises_on_its_values_is_told_to_the_asker() -> None:
    """Anything that escaped would leave its call open for ever."""
    with pytest.raises(InvalidField, match=r"expansion.fussy.*ZeroDivisionError"):
        codec.decode(["expansion.fussy", 1, {"number": 0}], [])
    assert codec.decode(["expansion.fussy", 1, {"number": 1}], []) == Fussy(1)
    assert np.array_equal(decode_numpy(["<i4", [1], b"\x01\0\0\0"], []), [1])
