"""The codec of deltas: whatever the bits, they come back; and it stays near what entropy allows."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.weights import Bucket, Manifest, TensorSpec, WeightsMismatch
from headrace.transport.weights.delta import Run, decode, encode, entropy_bytes, runs_of
from headrace.transport.weights.layout import DTYPES, build_layout, flatten_into
from headrace.transport.weights.manifest import ITEM_BYTES

WIDTHS = (1, 2, 4, 8)


def there_and_back(old: np.ndarray, new: np.ndarray, runs: tuple[Run, ...]) -> bytes:
    delta = encode(old, new, runs)
    out = np.full_like(old, 0xA5)
    decode(delta, old, out, runs)
    np.testing.assert_array_equal(out, new)
    return delta


@st.composite
def two_versions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, tuple[Run, ...]]:
    """Runs of any widths, changed sparsely, densely, wholly or not at all, by little or by anything."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    runs: list[Run] = []
    for _ in range(draw(st.integers(0, 4))):
        width = draw(st.sampled_from(WIDTHS))
        begin = runs[-1].end if runs else 0
        begin += -begin % width
        if runs and begin > runs[-1].end:
            runs[-1] = Run(runs[-1].begin, begin, 1)
        runs.append(Run(begin, begin + width * draw(st.integers(1, 3000)), width))
    old = rng.integers(0, 256, runs[-1].end if runs else 0, dtype=np.uint8)
    new = old.copy()
    for run in runs:
        words = new[run.begin : run.end].view(f"<u{run.width}")
        mask = rng.random(len(words)) < draw(st.sampled_from((0.0, 0.0005, 0.02, 0.5, 0.97, 1.0)))
        most = draw(st.sampled_from((1, 3, 200, 2 ** (8 * run.width - 1) - 1)))
        words[mask] += rng.integers(-most - 1, most, mask.sum(), endpoint=True).astype(words.dtype)
    return old, new, tuple(runs)


@given(two_versions())
@settings(max_examples=300, deadline=None)
def test_whatever_changed_comes_back(versions: tuple[np.ndarray, np.ndarray, tuple[Run, ...]]) -> None:
    there_and_back(*versions)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_difference_of_a_width_comes_back(width: int) -> None:
    """Also the one that has no opposite, and those that pass the ends of the integers."""
    top = 2 ** (8 * width) - 1
    edges = [0, 1, 2, top // 2, top // 2 + 1, top - 1, top]
    pairs = [(a, b) for a in edges for b in edges]
    old, new = (np.array(side, dtype=f"<u{width}").view(np.uint8) for side in zip(*pairs, strict=True))
    there_and_back(old, new, (Run(0, len(old), width),))


def slow_delta(old: np.ndarray, new: np.ndarray) -> list[tuple[int, int]]:
    """The twin: (position, signed difference) of each changed integer, by a loop."""
    found = []
    bits = 8 * old.itemsize
    for i, (a, b) in enumerate(zip(old.tolist(), new.tolist(), strict=True)):
        if a != b:
            difference = (b - a) % 2**bits
            found.append((i, difference - 2**bits if difference >= 2 ** (bits - 1) else difference))
    return found


@given(two_versions())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_what_a_loop_finds(versions: tuple[np.ndarray, np.ndarray, tuple[Run, ...]]) -> None:
    """Decoded upon zeros, a delta shows its differences alone."""
    old, new, runs = versions
    delta = encode(old, new, runs)
    found = np.zeros_like(old)
    decode(delta, found.copy(), found, runs)
    for run in runs:
        words = [side[run.begin : run.end].view(f"<u{run.width}") for side in (old, new, found)]
        signed = words[2].view(f"<i{run.width}")
        places = np.flatnonzero(words[2])
        assert list(zip(places.tolist(), signed[places].tolist(), strict=True)) == slow_delta(*words[:2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_with_its_strangest_bits(dtype: str) -> None:
    """NaN payloads, infinities, -0.0 and denormals are bits like any; a scalar and an empty tensor are tensors."""
    rng = np.random.default_rng(3)
    width = ITEM_BYTES[dtype]
    assert width == DTYPES[dtype].itemsize
    size = 257 * width

    def made(change: bool) -> dict[str, torch.Tensor]:
        raw = np.random.default_rng(4).integers(0, 256, size, dtype=np.uint8)
        if change:
            raw[rng.random(size) < 0.1] ^= 0xFF
        bits = torch.from_numpy(raw % 2 if dtype == "bool" else raw).view(DTYPES[dtype])
        return {"matrix": bits[:256].view(16, 16), "scalar": bits[256].clone(), "empty": bits[:0].clone()}

    old, new = made(False), made(True)
    layout = build_layout(old, bucket_bytes=192)
    buffers = []
    for tensors in (old, new):
        buffer = torch.full((layout.nbytes,), 7, dtype=torch.uint8)
        flatten_into(buffer, tensors, layout)
        buffers.append(buffer.numpy())
    manifest = layout.manifest(
        version=1, step=1, transport="shm", location="", checksums=tuple(0 for _ in layout.bounds)
    )
    for bucket in manifest.buckets:
        sides = [buffer[bucket.offset : bucket.offset + bucket.nbytes] for buffer in buffers]
        there_and_back(*sides, runs_of(manifest, bucket))


@pytest.mark.parametrize(("before", "after"), [(0.0, -0.0), (float("nan"), float("inf")), (1.0, 1.0078125)])
def test_equal_is_by_bits(before: float, after: float) -> None:
    sides = [
        torch.full((64,), value, dtype=torch.bfloat16).view(torch.uint8).numpy().copy() for value in (before, after)
    ]
    assert there_and_back(*sides, (Run(0, 128, 2),))
    assert there_and_back(sides[0], sides[0], (Run(0, 128, 2),)) == b""


def test_runs_cover_a_bucket_whatever_it_cuts() -> None:
    specs = (
        TensorSpec("a", "bfloat16", (33,), 0, 66),
        TensorSpec("b", "float32", (5,), 128, 20),
        TensorSpec("c", "uint8", (3,), 192, 3),
        TensorSpec("none", "int64", (0,), 256, 0),
        TensorSpec("d", "float32", (2,), 256, 8),
    )
    manifest = Manifest(1, 1, "shm", "", 264, specs, (), {})
    assert runs_of(manifest, Bucket(0, 264, 0)) == (
        Run(0, 128, 2),
        Run(128, 192, 4),
        Run(192, 256, 1),
        Run(256, 264, 4),
    )
    assert runs_of(manifest, Bucket(130, 66, 0)) == (Run(0, 66, 1),), "an element that is cut"
    assert runs_of(manifest, Bucket(2, 64, 0)) == (Run(0, 64, 2),)


@pytest.mark.parametrize(("lr", "share"), [(1e-6, 0.05), (1e-5, 0.3), (1e-4, 0.9)])
def test_it_stays_near_the_entropy_of_mask_and_values(lr: float, share: float) -> None:
    """Steps as Adam makes them, upon weights as they are, in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    masters = 0.02 * torch.randn(1 << 20, generator=generator)
    moved = masters + lr * torch.randn(1 << 20, generator=generator).clamp(-1, 1)
    old, new = (side.bfloat16().view(torch.uint8).numpy() for side in (masters, moved))
    delta = there_and_back(old, new, (Run(0, len(old), 2),))
    changed, allowed = entropy_bytes(old.view(np.uint16), new.view(np.uint16))
    assert 0 < changed / (1 << 20) < share
    assert len(delta) <= 1.3 * allowed


@given(st.binary(max_size=200), st.integers(0, 2**16))
@settings(max_examples=300, deadline=None)
def test_hostile_bytes_are_refused_by_name(noise: bytes, place: int) -> None:
    """Damaged deltas end in WeightsMismatch or in other bytes, which their checksum finds: never in anything else."""
    rng = np.random.default_rng(1)
    old = rng.integers(0, 256, 4096, dtype=np.uint8)
    new = old.copy()
    new[rng.random(4096) < 0.2] += 1
    runs = (Run(0, 4096, 2),)
    whole = bytearray(encode(old, new, runs))
    place %= len(whole)
    whole[place : place + len(noise)] = noise
    out = np.empty_like(old)
    for damaged in (bytes(whole), noise, bytes(whole[:place])):
        with suppress(WeightsMismatch):
            decode(damaged, old, out, runs)
