"""What one version of the weights consists of: names, dtypes, shapes, offsets, and a checksum for each bucket.

The sender's manifest fixes the layout; a receiver checks names, shapes and dtypes before any byte moves and
checksums before the version is served.
"""

from __future__ import annotations

from dataclasses import dataclass


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
class Manifest:
    """`tied` maps a name that shares another's storage to that name (it has no bytes of its own).
    `location` says where the bytes are, in the words of `transport` (for "shm": the segment's path)."""

    version: int
    step: int
    transport: str
    location: str
    nbytes: int
    tensors: tuple[TensorSpec, ...]
    buckets: tuple[Bucket, ...]
    tied: dict[str, str]
