"""Arrays on the wire: [dtype, shape, bytes] when small, [dtype, shape, frame number] when large (its own zero-copy
frame).

numpy dtypes travel as numpy's own strings ("<f4"), torch's by name ("bfloat16"), values as raw C-order bytes, so that
every bit is kept. torch is imported only where a tensor is met. A buffer that ZeroMQ still reads must not change: a
large numpy array that owns its memory is made read-only and travels without a copy; views into memory that somebody
else may write, and tensors, are copied. Decoded numpy arrays are read-only views of what arrived; tensors are copies.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.transport.errors import InvalidField
from headrace.transport.network import Frame

INLINE_BELOW_BYTES = 32 * 1024
_NUMPY_DTYPE = re.compile(r"[<>|][?biufcSU][0-9]{1,9}|[<>][mM]8(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")
_TORCH_DTYPES = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
)
_known_dtypes: dict[str, np.dtype[Any]] = {}


def encode_numpy(value: object, frames: list[Frame]) -> list[Any]:
    """Any numeric, string or time dtype, any strides; appends to `frames` what is large. Raises InvalidField."""
    if not isinstance(value, np.ndarray):
        raise InvalidField(f"must be a numpy array, got {type(value).__qualname__}")
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidField("masked arrays cannot travel; send value.filled(…), and np.ma.getmaskarray(value) beside it")
    dtype = value.dtype
    if dtype.hasobject or dtype.kind == "V":
        raise InvalidField(f"arrays of dtype {dtype} cannot travel; use a numeric dtype or plain fields")
    shape = value.shape
    if value.nbytes < INLINE_BELOW_BYTES:
        return [dtype.str, shape, value.tobytes()]
    if value.flags.c_contiguous and not _others_may_write(value):
        value.flags.writeable = False
    else:
        value = value.copy(order="C")
    frames.append(value.reshape(-1).view(np.uint8).data)
    return [dtype.str, shape, len(frames) - 1]


def _others_may_write(value: np.ndarray) -> bool:
    """Whether the memory that `value` looks into may be changed by others: anything but an array's own, or bytes'. That
    a view is read-only says nothing about what it looks into (a bytearray, a mapped file, a tensor)."""
    base = value.base
    if base is not None and value.flags.writeable:
        return True
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base is not None and not isinstance(base, bytes)


def decode_numpy(data: object, frames: Sequence[Frame]) -> np.ndarray:
    name, shape, raw = _parts(data, frames)
    dtype = _numpy_dtype(name)
    size = math.prod(shape) * dtype.itemsize
    if size != len(raw) or (dtype.itemsize == 0 and 0 not in shape):  # numpy would make one byte of each "S0"
        raise InvalidField(f"a {name} array of shape {tuple(shape)} has {size} bytes, {len(raw)} came")
    try:
        if size == 0:
            return np.empty(shape, dtype)
        array = np.frombuffer(raw, dtype)
        array.flags.writeable = False  # a ZeroMQ frame's buffer is writable
        return array.reshape(shape)
    except (ValueError, OverflowError, MemoryError) as error:
        raise InvalidField(f"no array can have shape {tuple(shape)}: {error}") from error


def encode_torch(value: object, frames: list[Frame]) -> list[Any]:
    """A dense tensor of any dtype of the table, on any device (copied to the CPU). Raises InvalidField."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        raise InvalidField(f"must be a torch tensor, got {type(value).__qualname__}")
    name = str(value.dtype).removeprefix("torch.")
    if name not in _TORCH_DTYPES or value.layout is not torch.strided:
        raise InvalidField(f"a {value.layout} tensor of dtype {name} cannot travel; make it dense")
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
    if flat.nbytes < INLINE_BELOW_BYTES:
        return [name, tuple(value.shape), flat.numpy().tobytes()]
    if flat.data_ptr() == value.data_ptr():
        flat = flat.clone()
    frames.append(flat.numpy().data)
    return [name, tuple(value.shape), len(frames) - 1]


def decode_torch(data: object, frames: Sequence[Frame]) -> Any:
    import torch

    name, shape, raw = _parts(data, frames)
    if name not in _TORCH_DTYPES:
        raise InvalidField(f"{name!r:.100} is no torch dtype that travels")
    dtype = getattr(torch, name)
    size = math.prod(shape) * dtype.itemsize
    if size != len(raw):
        raise InvalidField(f"a {name} tensor of shape {tuple(shape)} has {size} bytes, {len(raw)} came")
    if size == 0:
        try:
            return torch.empty(shape, dtype=dtype)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # [0, 2**63]
            raise InvalidField(f"no tensor can have shape {tuple(shape)!r:.200}") from error
    flat = torch.empty(size, dtype=torch.uint8)
    flat.numpy()[:] = np.frombuffer(raw, np.uint8)
    return flat.view(dtype).reshape(shape)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    dtype = _known_dtypes.get(name)
    if dtype is None:
        if not _NUMPY_DTYPE.fullmatch(name):
            raise InvalidField(f"{name!r:.100} is no dtype that travels")
        try:
            dtype = np.dtype(name)
        except TypeError as error:
            raise InvalidField(f"{name!r} is no dtype: {error}") from error
        if len(_known_dtypes) < 256:
            _known_dtypes[name] = dtype
    return dtype


def _parts(data: object, frames: Sequence[Frame]) -> tuple[str, list[int], Frame]:
    if not isinstance(data, list) or len(data) != 3:
        raise InvalidField(f"an array travels as [dtype, shape, data], got {type(data).__qualname__}")
    name, shape, raw = data
    if not isinstance(name, str) or not isinstance(shape, list) or len(shape) > 64:
        raise InvalidField("an array travels as [dtype, shape, data] with a text and a list of sizes")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidField(f"an array's sizes must be integers >= 0, got {shape!r:.100}")
    if type(raw) is int:
        if not 0 <= raw < len(frames):
            raise InvalidField(f"the array points at frame {raw}, {len(frames)} frames came")
        raw = frames[raw]
    elif type(raw) is not bytes:
        raise InvalidField("an array's data must be bytes or a frame number")
    return name, shape, raw
