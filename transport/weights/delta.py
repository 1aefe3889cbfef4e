"""What changed between two versions of the same bytes, small: a codec for one bucket. Pure NumPy and zstd.

Elements are compared as integers of their width, so that NaN payloads, -0.0 and padding travel as they are. Of each
changed element go the gap to the changed one before it, and the difference of the two integers (a step of the
optimizer moves a bfloat16 by one or two units in the last place: small numbers, where xor has long carries). Gaps and
differences are Rice-coded by bytes: the low bits, which are noise, are packed as they are; what is above them, which
is not, lies in a stream of bytes of its own, for zstd. Called by the weights' source (encode) and by relays (decode).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from headrace.transport.weights.manifest import ITEM_BYTES, Bucket, Manifest, WeightsMismatch

_WIDTHS: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
_HEAD = struct.Struct("<BII")
"""width, changed elements, bytes that follow"""
_PART = struct.Struct("<BBI")
"""noise bits, bytes of the rest, packed bytes"""
_GAPS, _MASK = b"g", b"m"
"""how the places of changes are told: where most elements change, a bit for each is less than their gaps"""
_SAMPLE = 1 << 14
_MOST_NOISE_BITS = 24
_LEVEL = 1
"""zstd's: what is left after the noise is gone has no long matches to look for; level 3 wins less than 1 %"""


@dataclass(frozen=True, slots=True)
class Run:
    """[begin, end) of a bucket holds elements of `width` bytes."""

    begin: int
    end: int
    width: int


def runs_of(manifest: Manifest, bucket: Bucket) -> tuple[Run, ...]:
    """The bucket's bytes by the width of their elements, without gaps: padding belongs to what stands before it. An
    element that a bucket's edge cuts makes its neighbours single bytes."""
    runs: list[Run] = []
    specs = [spec for spec in manifest.tensors if spec.nbytes]
    for i, spec in enumerate(specs):
        end = specs[i + 1].offset if i + 1 < len(specs) else manifest.nbytes
        begin, end = max(spec.offset, bucket.offset), min(end, bucket.offset + bucket.nbytes)
        if begin >= end:
            continue
        width = ITEM_BYTES[spec.dtype]
        if (begin - spec.offset) % width or (end - begin) % width:
            width = 1
        begin, end = begin - bucket.offset, end - bucket.offset
        if runs and runs[-1].width == width:
            runs[-1] = Run(runs[-1].begin, end, width)
        else:
            runs.append(Run(begin, end, width))
    return tuple(runs)


def encode(old: np.ndarray, new: np.ndarray, runs: Sequence[Run]) -> bytes:
    """old, new: uint8[N], `runs` cover them. Returns what `decode` needs beside `old`; b"" where nothing changed."""
    parts = [_encode_run(_words(old, run), _words(new, run), run.width) for run in runs]
    return b"".join(parts) if any(len(part) > _HEAD.size for part in parts) else b""


def decode(delta: bytes | memoryview, base: np.ndarray, out: np.ndarray, runs: Sequence[Run]) -> None:
    """Write base (uint8[N]) with its changes into out (uint8[N]). Raises WeightsMismatch for bytes that are no delta of
    these runs; whether they are the right one, the bucket's checksum tells."""
    np.copyto(out, base)
    if not len(delta):
        return
    view = memoryview(delta)
    try:
        for run in runs:
            width, num, size = _HEAD.unpack_from(view)
            if width != run.width or num > (run.end - run.begin) // run.width:
                raise ValueError(f"{num} changes of width {width} in {run}")
            if num:
                _decode_run(view[_HEAD.size : _HEAD.size + size], num, _words(out, run))
            view = view[_HEAD.size + size :]
        if len(view):
            raise ValueError(f"{len(view)} bytes too many")
    except (ValueError, IndexError, struct.error, zstandard.ZstdError) as error:
        raise WeightsMismatch(f"not a delta of this bucket: {error}") from error


def entropy_bytes(old: np.ndarray, new: np.ndarray) -> tuple[int, float]:
    """(changed elements, bytes) for integers of one width: the zeroth-order entropy of the mask of changed elements and
    of the differences of those. What an encoding that knows nothing else could reach."""
    mask = old != new
    changed = int(np.count_nonzero(mask))
    if not changed:
        return 0, 0.0
    share = changed / len(old)
    bits = 0.0 if share == 1 else -len(old) * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    counts = np.unique(new[mask] - old[mask], return_counts=True)[1]
    bits += float(-(counts * np.log2(counts / changed)).sum())
    return changed, bits / 8


def _words(buffer: np.ndarray, run: Run) -> np.ndarray:
    words: np.ndarray = buffer[run.begin : run.end].view(_WIDTHS[run.width])
    return words


def _encode_run(old: np.ndarray, new: np.ndarray, width: int) -> bytes:
    changed = old != new
    positions = np.flatnonzero(changed)
    if not len(positions):
        return _HEAD.pack(width, 0, 0)
    places = _GAPS + _pack((np.diff(positions, prepend=-1) - 1).astype(np.uint64))
    if len(places) > -(-len(changed) // 8):
        places = _MASK + np.packbits(changed, bitorder="little").tobytes()
    body = places + _pack(_zigzag(new[positions] - old[positions]).astype(np.uint64))
    return _HEAD.pack(width, len(positions), len(body)) + body


def _decode_run(body: memoryview, num: int, out: np.ndarray) -> None:
    kind, body = bytes(body[:1]), body[1:]
    if kind == _MASK:
        size = -(-len(out) // 8)
        mask = np.unpackbits(np.frombuffer(body[:size], np.uint8), count=len(out), bitorder="little")
        places, body = np.flatnonzero(mask), body[size:]
    else:
        gaps, body = _unpack(body, num)
        if gaps.max() >= len(out):
            raise ValueError(f"a gap of {gaps.max()} in {len(out)} elements")
        places = np.cumsum(gaps.astype(np.intp) + 1) - 1
    steps, body = _unpack(body, num)
    if len(body) or len(places) != num or places[-1] >= len(out):
        raise ValueError(f"{num} changes at {len(places)} places of {len(out)} elements, {len(body)} bytes too many")
    out[places] += _unzigzag(steps.astype(out.dtype))


def _zigzag(differences: np.ndarray) -> np.ndarray:
    """Unsigned differences modulo their width, none of them 0: 1, -1, 2, -2 … become 0, 1, 2, 3 …"""
    negative = differences >> (8 * differences.itemsize - 1) != 0
    double = differences << 1
    return np.where(negative, ~double, double - 2)


def _unzigzag(codes: np.ndarray) -> np.ndarray:
    half = codes >> 1
    return np.where(codes & 1 != 0, ~half, half + 1)


# --- noise and the rest ---------------------------------------------------------------------------------------------


def _pack(values: np.ndarray) -> bytes:
    """uint64[N]: the `noise` low bits of each as they are, the rest in bytes, lowest first, each compressed alone."""
    noise = _noise_bits(values)
    packed = _pack_bits(values, noise)
    planes = _planes(values >> np.uint64(noise))
    return b"".join((_PART.pack(noise, len(planes), len(packed)), packed, *planes))


def _unpack(body: memoryview, num: int) -> tuple[np.ndarray, memoryview]:
    noise, num_planes, packed = _PART.unpack_from(body)
    if noise > 64 or num_planes > 8 or noise + 8 * (num_planes - 1) > 63 or packed != -(-num * noise // 8):
        raise ValueError(f"{noise} noise bits, {num_planes} planes, {packed} packed bytes of {num} values")
    body = body[_PART.size :]
    values = _unpack_bits(body[:packed], num, noise)
    body = body[packed:]
    for i in range(num_planes):
        (size,) = struct.unpack_from("<I", body)
        frame = body[4 : 4 + size]
        if zstandard.frame_content_size(frame) != num:
            raise ValueError(f"a plane of {zstandard.frame_content_size(frame)} bytes for {num} values")
        plane = zstandard.ZstdDecompressor().decompress(frame)
        values |= np.frombuffer(plane, np.uint8).astype(np.uint64) << np.uint64(noise + 8 * i)
        body = body[4 + size :]
    return values, body


def _compress(plane: np.ndarray) -> bytes:
    """Huffman suits what is left better than matches do where it has many symbols; runs of zeros are matches."""
    data = plane.tobytes()
    best = min((zstandard.ZstdCompressor(compression_params=p).compress(data) for p in _parameters()), key=len)
    return struct.pack("<I", len(best)) + best


def _parameters() -> tuple[zstandard.ZstdCompressionParameters, ...]:
    make: Callable[..., Any] = zstandard.ZstdCompressionParameters.from_level
    return (make(_LEVEL), make(_LEVEL, min_match=7, strategy=zstandard.STRATEGY_FAST, target_length=4096))


def _noise_bits(values: np.ndarray) -> int:
    """How many low bits are not worth compressing: what makes a sample the smallest."""
    sample = values[:_SAMPLE]
    most = int(sample.max()).bit_length()
    return min(
        range(min(most, _MOST_NOISE_BITS) + 1), key=lambda bits: bits * len(sample) / 8 + _rest_bytes(sample, bits)
    )


def _rest_bytes(values: np.ndarray, noise: int) -> int:
    return sum(len(plane) for plane in _planes(values >> np.uint64(noise)))


def _planes(rest: np.ndarray) -> list[bytes]:
    num_planes = (int(rest.max()).bit_length() + 7) // 8
    return [_compress((rest >> np.uint64(8 * i)).astype(np.uint8)) for i in range(num_planes)]


def _pack_bits(values: np.ndarray, bits: int) -> bytes:
    if not bits:
        return b""
    low = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    columns = np.unpackbits(low[:, : -(-bits // 8)], axis=1, bitorder="little")[:, :bits]
    return np.packbits(columns.reshape(-1), bitorder="little").tobytes()


def _unpack_bits(packed: memoryview, num: int, bits: int) -> np.ndarray:
    if not bits:
        return np.zeros(num, dtype=np.uint64)
    columns = np.unpackbits(np.frombuffer(packed, np.uint8), count=num * bits, bitorder="little").reshape(num, bits)
    low = np.zeros((num, 8), dtype=np.uint8)
    low[:, : -(-bits // 8)] = np.packbits(columns, axis=1, bitorder="little")
    return low.view("<u8").reshape(num).astype(np.uint64)
