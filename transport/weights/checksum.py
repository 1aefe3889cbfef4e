"""xxh3-64 over buckets of a flat buffer: a corrupted byte is found before a version is served.

What no checksum finds is a byte that changes between `verify` and the engine's load (a stray writer, failing memory):
for that there is the probe, which asks the engine what it serves after each update and raises an alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from headrace.transport.weights.manifest import Bucket, Manifest, WeightsMismatch


def checksums(buffer: memoryview, bounds: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """The checksum of each (offset, nbytes)."""
    return tuple(int(xxhash.xxh3_64_intdigest(buffer[offset : offset + nbytes])) for offset, nbytes in bounds)


def is_whole(found: memoryview, bucket: Bucket) -> bool:
    """Whether these are the bytes that the sender staged."""
    return int(xxhash.xxh3_64_intdigest(found)) == bucket.checksum


def verify(buffer: memoryview, manifest: Manifest) -> None:
    """Raise WeightsMismatch naming each bucket whose bytes are not those that the sender staged."""
    compare(manifest, checksums(buffer, ((bucket.offset, bucket.nbytes) for bucket in manifest.buckets)))


def compare(manifest: Manifest, found: Sequence[int]) -> None:
    """Raise WeightsMismatch naming each bucket whose checksum is not the one that the sender made."""
    bad = [
        f"bucket {i} [{bucket.offset}, {bucket.offset + bucket.nbytes}): {checksum:#018x}, sent {bucket.checksum:#018x}"
        for i, (bucket, checksum) in enumerate(zip(manifest.buckets, found, strict=True))
        if checksum != bucket.checksum
    ]
    if bad:
        raise WeightsMismatch(
            f"version {manifest.version}, {manifest.location}: bad checksums in {len(bad)} of {len(manifest.buckets)}: "
            + "; ".join(bad[:5])
        )
