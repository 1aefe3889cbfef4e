"""Messages through the codec: round trips of everything allowed, named refusals of everything else."""

from __future__ import annotations

import contextlib
import enum
import math
import mmap
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib.stride_tricks import as_strided

from headrace.transport import InvalidField, UnknownMessage, WrongVersion, codec, message
from headrace.transport.arrays import encode_numpy
from headrace.transport.errors import BadMessage, CorruptFrame
from headrace.transport.network import Frame

LARGE = 100_000


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    size: int = 0

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size must be >= 0, got {self.size}")


@message("codec.everything", version=3)
@dataclass(frozen=True, slots=True)
class Everything:
    flag: bool = False
    number: int = 0
    real: float = 0.0
    text: str = ""
    raw: bytes = b""
    maybe: str | None = None
    one_of: Literal["a", "b", 3] = "a"
    colour: Colour = Colour.RED
    many: tuple[int, ...] = ()
    two: tuple[str, float] = ("", 0.0)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    by_name: dict[str, Leaf] = field(default_factory=dict)
    by_number: dict[int, float] = field(default_factory=dict)
    anything: object = None
    leaf: Leaf | None = None
    inner: Everything | None = None


@message("codec.arrays")
@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    values: np.ndarray
    maybe: np.ndarray | None = None


@message("codec.tensor")
@dataclass(frozen=True, slots=True, eq=False)
class OneTensor:
    values: torch.Tensor


int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | int64s | st.floats(allow_nan=False) | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
leaves = st.builds(Leaf, texts, st.integers(0, 10))
everything = st.builds(
    Everything, st.booleans(), int64s, st.floats(allow_nan=False), texts, st.binary(max_size=50), st.none() | texts,
    st.sampled_from(["a", "b", 3]), st.sampled_from(Colour), st.lists(int64s, max_size=4).map(tuple),
    st.tuples(texts, st.floats(allow_nan=False)), st.lists(st.lists(int64s, max_size=2).map(tuple), max_size=2),
    st.dictionaries(texts, leaves, max_size=3), st.dictionaries(int64s, st.floats(allow_nan=False), max_size=3),
    json_values, st.none() | leaves,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(everything, st.none() | everything)
def test_everything_comes_back_equal(value: Everything, inner: Everything | None) -> None:
    import dataclasses

    value = dataclasses.replace(value, inner=inner)
    assert codec.round_trip(value) == value


def test_floats_keep_nan_and_infinities_and_take_ints() -> None:
    assert math.isnan(codec.round_trip(Everything(real=math.nan)).real)
    assert codec.round_trip(Everything(real=-math.inf)).real == -math.inf
    back = codec.round_trip(Everything(real=3))
    assert back.real == 3.0
    assert type(back.real) is float
    assert codec.round_trip(Everything(real=np.float32(0.5), number=np.int64(7))) == Everything(real=0.5, number=7)


@settings(max_examples=200, deadline=None)
@given(
    hnp.arrays(
        st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes(), hnp.unicode_string_dtypes()),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_arrays_of_any_dtype_and_shape(values: np.ndarray) -> None:
    back = codec.round_trip(Arrays(values)).values
    assert (back.dtype, back.shape) == (values.dtype, values.shape)
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("large", [False, True])
def test_arrays_with_any_strides(large: bool) -> None:
    """cases I116: lebedov/msgpack-numpy#34"""
    x = np.random.default_rng(0).standard_normal((300, 300) if large else (20, 20)).astype(np.float32)
    views = [x[1:-1, 2:-3], x.T, x[::2], x[::-1], np.asfortranarray(x), np.array(3.0), x[:0], x[0, 0, None]]
    for view in [*views, np.zeros((0, 3)), np.array(7, np.int16), x.astype(">f4"), x.astype(np.float16), x > 0]:
        back = codec.round_trip(Arrays(view)).values
        assert (back.dtype, back.shape) == (view.dtype, view.shape)
        assert np.array_equal(back, view)


def test_an_array_in_an_optional_field() -> None:
    assert codec.round_trip(Arrays(np.ones(2))).maybe is None
    assert codec.round_trip(Arrays(np.ones(2), np.zeros(3))).maybe.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float16", "float32", "float64", "int8", "int64", "bool", "uint8", "complex64", "float8_e4m3fn"],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5), (200, 300)])
def test_tensors_keep_every_bit(dtype: str, shape: tuple[int, ...]) -> None:
    kind = getattr(torch, dtype)
    count = math.prod(shape) * kind.itemsize
    bits = torch.from_numpy(np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, count, np.uint8).copy())
    tensor = bits.view(kind).reshape(shape) if count else torch.empty(shape, dtype=kind)
    for sent in (tensor, tensor.t() if len(shape) == 2 and count else tensor):
        back = codec.round_trip(OneTensor(sent)).values
        assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
        if count:
            same = back.contiguous().reshape(-1).view(torch.uint8), sent.contiguous().reshape(-1).view(torch.uint8)
            assert torch.equal(*same)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (Everything(number="1"), InvalidField, "Everything.number: must be an int, got str '1'"),  # type: ignore[arg-type]
        (Everything(number=True), InvalidField, "number: must be an int, got bool"),
        (Everything(number=2**70), InvalidField, "does not fit"),
        (Everything(real="x"), InvalidField, "real: must be a float"),  # type: ignore[arg-type]
        (Everything(text="\ud800"), InvalidField, "does not fit"),
        (Everything(one_of="c"), InvalidField, "one_of: must be one of 'a', 'b', 3"),  # type: ignore[arg-type]
        (Everything(many=(1, "2")), InvalidField, "many: must be an int"),  # type: ignore[arg-type]
        (Everything(two=("a",)), InvalidField, "two: must be a tuple of 2"),  # type: ignore[arg-type]
        (Everything(by_name={"a": 1}), InvalidField, "by_name: must be Leaf"),  # type: ignore[dict-item]
        (Everything(anything={1, 2}), InvalidField, "anything: must be a JSON-like value"),
        (Everything(anything=np.zeros(2)), InvalidField, "JSON-like"),
        (Arrays(np.array([object()])), InvalidField, "dtype object cannot travel"),
        (Arrays([1, 2]), InvalidField, "values: must be a numpy array, got list"),  # type: ignore[arg-type]
        (Leaf("not registered"), UnknownMessage, "Leaf is not a message"),
        (OneTensor(np.zeros(2)), InvalidField, "must be a torch tensor, got ndarray"),  # type: ignore[arg-type]
    ],
)
def test_the_sender_is_told_what_is_wrong(value: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(")):
        codec.round_trip(value)
    assert codec.round_trip(Everything(number=1)) == Everything(number=1), "the codec works on after a refusal"


@pytest.mark.parametrize("num", [4, 100_000])
def test_a_mask_is_not_lost_in_silence(num: int) -> None:
    masked = np.ma.masked_array(np.zeros(num), mask=np.arange(num) % 2 == 1)
    with pytest.raises(InvalidField, match=r"masked arrays cannot travel; send value\.filled"):
        codec.encode(Arrays(masked))


class _Hostile(np.ndarray):
    def tobytes(self, order: Any = None) -> bytes:
        raise OSError("a value with a mind of its own")


def test_whatever_a_value_raises_is_told_to_the_sender() -> None:
    with pytest.raises(InvalidField, match=r"cannot be encoded: OSError: a value with a mind"):
        codec.encode(Arrays(np.zeros(3).view(_Hostile)))


def test_hydra_containers_are_refused_with_the_fix() -> None:
    """cases I118: NVIDIA/physicsnemo#133"""
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"sub": {"list": [1, 2]}})
    for value in (Everything(many=config.sub.list), Everything(anything=config.sub), Everything(by_number=config.sub)):
        with pytest.raises(InvalidField, match=r"omegaconf .*OmegaConf.to_container"):
            codec.encode(value)


def decoded(payload: Any, frames: list[bytes] | None = None) -> Any:
    return codec.decode(codec.unpack(msgpack.packb(payload)), frames or [])


def test_the_receiver_refuses_by_name() -> None:
    good = {"name": "x"}
    encoded = codec.encode(Everything(leaf=Leaf("x", 1)))[0]
    assert encoded is not None
    with pytest.raises(UnknownMessage, match=r"no message 'codec.nothing'"):
        decoded(["codec.nothing", 1, {}])
    with pytest.raises(WrongVersion, match="version 2, this process has version 3"):
        decoded(["codec.everything", 2, {}])
    with pytest.raises(InvalidField, match=r"missing fields: values; .*: none"):
        decoded(["codec.arrays", 1, {"maybe": None}])
    with pytest.raises(InvalidField, match="does not have: 'extra'"):
        decoded(["codec.everything", 3, {**encoded[2], "extra": 1}])
    with pytest.raises(InvalidField, match="leaf: Leaf: size must be >= 0"):
        decoded(["codec.everything", 3, {**encoded[2], "leaf": {**good, "size": -1}}])
    for payload in (3, [], ["codec.arrays"], ["codec.arrays", "1", {}], ["codec.arrays", 1, []]):
        with pytest.raises(BadMessage):
            decoded(payload)


@pytest.mark.parametrize(
    "array",
    [
        None, [], ["<f4", [1]], ["<f4", [1], b""], ["<f4", [-1], b""], ["<f4", [2**62, 4], b""],
        ["|O", [1], b"12345678"],
        ["<f4", ["1"], b"1234"], ["f4,f4", [1], b"12345678"], ["<f4", [0, 2**62], b""], ["<f4", [1], 0],
        ["<f4", [1], -1],
        ["<f4", [1], True], ["__import__('os')", [1], b"1"], ["<f9", [1], b"1" * 9], ["|V4", [1], b"1234"],
        ["<f4", [1] * 65, b"1234"],
    ],
)  # fmt: skip
def test_hostile_arrays_are_refused(array: object) -> None:
    with pytest.raises(InvalidField):
        decoded(["codec.arrays", 1, {"values": array, "maybe": None}])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_never_do_more_than_raise(data: bytes) -> None:
    with contextlib.suppress(BadMessage):
        codec.decode(codec.unpack(data), [])


@settings(max_examples=300, deadline=None)
@given(everything, st.data())
def test_damaged_messages_never_do_more_than_raise(value: Everything, data: st.DataObject) -> None:
    packed = bytearray(codec.pack(codec.encode(value)[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadMessage):
        codec.decode(codec.unpack(bytes(packed)), [])


def test_deep_nesting_is_refused() -> None:
    deep: Any = None
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadMessage):
        codec.pack(codec.encode(Everything(anything=deep))[0])
    with pytest.raises(CorruptFrame):
        codec.unpack(b"\x91" * 5000)
    with pytest.raises(CorruptFrame):
        codec.unpack(b"\xc7\x04\x01abcd")  # an extension type
    with pytest.raises(BadMessage):
        decoded(["codec.everything", 3, msgpack.Timestamp(1, 2)])


def test_a_class_that_cannot_travel_is_named_at_first_use() -> None:
    @message("codec.set")
    @dataclass(frozen=True)
    class HoldsASet:
        things: set[int]

    with pytest.raises(TypeError, match=r"HoldsASet.things: set\[int\] cannot be in a message"):
        codec.encode(HoldsASet({1}))
    with pytest.raises(TypeError, match="must be a frozen dataclass"):
        message("codec.thawed")(dataclass(type("Thawed", (), {})))
    with pytest.raises(TypeError, match=r"'codec.arrays' is taken by"):
        message("codec.arrays")(Leaf)


def test_the_wire_bytes_of_one_message_are_fixed() -> None:
    """Another language reads this: docs/runtime.md shows it."""
    packed = codec.pack(codec.encode(Arrays(np.array([1, 2], "<i4")))[0])
    expected = b"\x93\xaccodec.arrays\x01\x82\xa6values\x93\xa3<i4\x91\x02\xc4\x08" + struct.pack("<ii", 1, 2)
    assert packed == expected + b"\xa5maybe\xc0"


def test_naming_a_tensor_does_not_import_torch() -> None:
    import subprocess

    code = (
        "from __future__ import annotations\nimport sys\nfrom dataclasses import dataclass\n"
        "from headrace.transport import codec, message\n"
        "@message('t')\n@dataclass(frozen=True)\nclass T:\n    x: torch.Tensor | None = None\n"
        "assert codec.round_trip(T()) == T()\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _over_bytes() -> np.ndarray:
    return np.frombuffer(bytes(LARGE), np.uint8)


def _over_a_bytearray() -> tuple[np.ndarray, Callable[[], None]]:
    memory = bytearray(LARGE)
    return np.frombuffer(memoryview(memory).toreadonly(), np.uint8), lambda: memory.__setitem__(0, 1)


def _strided() -> tuple[np.ndarray, Callable[[], None]]:
    memory = np.zeros(LARGE, np.uint8)
    return as_strided(memory, writeable=False), lambda: memory.__setitem__(0, 1)


def _mapped() -> tuple[np.ndarray, Callable[[], None]]:
    memory = mmap.mmap(-1, LARGE)
    return np.frombuffer(memoryview(memory).toreadonly(), np.uint8), lambda: memory.__setitem__(0, 1)


def _of_a_tensor() -> tuple[np.ndarray, Callable[[], None]]:
    tensor = torch.zeros(LARGE, dtype=torch.uint8)
    view = tensor.numpy()
    view.flags.writeable = False
    return view, lambda: tensor.__setitem__(0, 1)


@pytest.mark.parametrize("make", [_over_a_bytearray, _strided, _mapped, _of_a_tensor])
def test_read_only_views_of_what_others_may_write_are_copied(
    make: Callable[[], tuple[np.ndarray, Callable[[], None]]],
) -> None:
    """A socket may still read the frame when the caller goes on."""
    array, change = make()
    frames: list[Frame] = []
    encode_numpy(array, frames)
    change()
    assert array[0] == 1
    assert not any(frames[0])


def test_what_nobody_can_write_is_not_copied() -> None:
    array = _over_bytes()
    frames: list[Frame] = []
    encode_numpy(array[:], frames)
    assert np.shares_memory(np.frombuffer(frames[0], np.uint8), array)
