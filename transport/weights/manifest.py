"""What one version of the weights consists of: names, dtypes, shapes, offsets, and a checksum for each bucket.

The sender's manifest fixes the layout; a receiver checks names, shapes and dtypes before any byte moves and
checksums before the version is served. Plain data: a manifest travels inside a message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_MB_PER_S = 1e-3
MAX_SHOWN = 20
"""problems in one message"""
FLOAT_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
"""What may be converted into one another. The float8 kinds travel, but as they are: without their scales their values
mean nothing, so that a conversion would be wrong in silence."""
ITEM_BYTES = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1},
}
"""Of one element of every dtype that may travel."""


class WeightsMismatch(ValueError):
    """A set of weights that must not be served: wrong names, shapes, dtypes or bytes. Says which."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """`dtype` is torch's name without the prefix ("float32", "bfloat16", …); bytes lie contiguous, C order, at
    [offset, offset + nbytes) of the version's flat buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """[offset, offset + nbytes) of the flat buffer and its xxh3-64 checksum."""

    offset: int
    nbytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """The tensors are LoRA factors, not weights: of each module the weight W is to act as W + (alpha / rank) · B @ A.

    modules: names of the adapted modules in the model ("model.layers.0.mlp.up_proj"); A is float[rank, in] and B is
    float[out, rank], under PEFT's names. base: the version of the full weights that they go upon, which
    a receiver that holds other ones loads first; None: what the model folder holds."""

    rank: int
    alpha: float
    modules: tuple[str, ...]
    base: Manifest | None


@dataclass(frozen=True, slots=True)
class Probe:
    """What these weights make of a fixed text by the sender's own computation: whoever loaded them right finds the
    same. token_ids: T; logprobs: T - 1, of each token after the first, at temperature 1; bound: of the mean absolute
    difference, which other kernels and precisions alone do not pass."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    bound: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """`tied` maps a name that shares another's storage to that name (it has no bytes of its own).
    `location` says where the bytes are, in the words of `transport` (for "shm": the segment's path).
    `adapter`: None for full weights. `probe`: None where the sender made none."""

    version: int
    step: int
    transport: str
    location: str
    nbytes: int
    tensors: tuple[TensorSpec, ...]
    buckets: tuple[Bucket, ...]
    tied: dict[str, str]
    adapter: Adapter | None = None
    probe: Probe | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every name that this version sets, tied ones included."""
        return frozenset(spec.name for spec in self.tensors) | frozenset(self.tied)

    def travel_s(self, min_mb_per_s: float) -> float:
        """Seconds that its bytes, and those of the weights that an adapter goes upon, take where each second moves so
        many megabytes: what a deadline allows beside its fixed part."""
        base = None if self.adapter is None else self.adapter.base
        return (self.nbytes + (0 if base is None else base.nbytes)) / (1e6 * min_mb_per_s)


def check_min_mb_per_s(name: str, value: float) -> None:
    """Raise ValueError where deadlines of Manifest.travel_s would be beyond what a clock can wait for."""
    if not value >= MIN_MB_PER_S:
        raise ValueError(
            f"{name} must be >= {MIN_MB_PER_S:g}, got {value}; it is what the slowest link moves in a second"
        )


def same_weights(one: Manifest, other: Manifest) -> bool:
    """Whether two versions hold the same bytes under the same names, wherever they lie."""
    return (one.tensors, one.tied, one.buckets) == (other.tensors, other.tied, other.buckets)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a receiver has under a name: shape and dtype (torch's name without the prefix)."""

    shape: tuple[int, ...]
    dtype: str


def check_layout(manifest: Manifest) -> None:
    """Raise WeightsMismatch with all that contradicts itself: what reads by such a manifest would read, or write,
    where it should not. Called wherever one that came from another process is opened."""
    problems = [] if manifest.nbytes >= 0 else [f"{manifest.nbytes} bytes in all"]
    end = 0
    for spec in manifest.tensors:
        if spec.dtype not in ITEM_BYTES:
            problems.append(f"{spec.name}: dtype {spec.dtype} is none of {', '.join(sorted(ITEM_BYTES))}")
        elif min(spec.shape, default=0) < 0 or spec.nbytes != math.prod(spec.shape) * ITEM_BYTES[spec.dtype]:
            problems.append(f"{spec.name}: {spec.nbytes} bytes are not {spec.dtype}{list(spec.shape)}")
        if not end <= spec.offset <= manifest.nbytes - spec.nbytes:
            problems.append(
                f"{spec.name}: bytes [{spec.offset}, {spec.offset + spec.nbytes}) do not lie between {end}, where the "
                f"tensor before it ends, and the end, {manifest.nbytes}"
            )
        end = max(end, spec.offset + spec.nbytes)
    names = {spec.name for spec in manifest.tensors}
    if len(names) < len(manifest.tensors):
        problems.append("two tensors have one name")
    problems += [f"{name}: tied to {to}, which is not sent" for name, to in manifest.tied.items() if to not in names]
    problems += [f"{name}: tied, and sent too" for name in sorted(names & manifest.tied.keys())]
    end = 0
    for index, bucket in enumerate(manifest.buckets):
        if bucket.offset != end or bucket.nbytes < 0:
            problems.append(
                f"bucket {index} is {bucket.nbytes} bytes from {bucket.offset}, the one before ends at {end}"
            )
        end = bucket.offset + bucket.nbytes
    if end != manifest.nbytes:
        problems.append(f"the buckets end at {end}, the bytes at {manifest.nbytes}")
    if problems:
        raise WeightsMismatch(
            f"the manifest of version {manifest.version} contradicts itself ({len(problems)} times): "
            f"{_listed(problems)}"
        )
    if manifest.adapter is not None and manifest.adapter.base is not None:
        check_layout(manifest.adapter.base)


def check_expected(manifest: Manifest, expected: Mapping[str, Expected], *, cast_floats: bool = False) -> None:
    """Raise WeightsMismatch with all that differs between what is sent and what the receiver has.

    `cast_floats` accepts one floating dtype for another (a float32 learner, a bfloat16 engine); bits are never
    reinterpreted. The sets of names must be equal: nothing is skipped in silence, nothing stays old.
    """
    specs = {spec.name: spec for spec in manifest.tensors}
    sent = specs | {name: specs[source] for name, source in manifest.tied.items() if source in specs}
    problems = [f"missing: {name}" for name in sorted(expected.keys() - sent.keys())]
    problems += [f"unknown to the receiver: {name}" for name in sorted(sent.keys() - expected.keys())]
    for name in sorted(sent.keys() & expected.keys()):
        spec, want = sent[name], expected[name]
        if tuple(spec.shape) != tuple(want.shape):
            problems.append(f"{name}: shape {tuple(spec.shape)} sent, {tuple(want.shape)} expected")
        castable = cast_floats and spec.dtype in FLOAT_DTYPES and want.dtype in FLOAT_DTYPES
        if spec.dtype != want.dtype and not castable:
            problems.append(f"{name}: dtype {spec.dtype} sent, {want.dtype} expected")
    if problems:
        raise WeightsMismatch(
            f"version {manifest.version} does not fit the receiver's model ({len(problems)} differences): "
            f"{_listed(problems)}. The learner and the engine must load the same architecture"
        )


def _listed(problems: Sequence[str]) -> str:
    more = f"; … {len(problems) - MAX_SHOWN} more" if len(problems) > MAX_SHOWN else ""
    return "; ".join(problems[:MAX_SHOWN]) + more
