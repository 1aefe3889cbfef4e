"""One version through one group, bucket by bucket: rank 0 sends, the others receive and verify. Two buckets are under
way at a time, so that one is checked, or loaded, while the next arrives.

The first message says which version follows, laid out how: a rank that goes by another manifest finds it out before a
byte of it is taken for a weight.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import xxhash

from headrace.transport.weights.checksum import checksums
from headrace.transport.weights.manifest import Bucket, Manifest, WeightsMismatch

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.transport.weights.collective.communicator import Communicator, Work

_TITLE = struct.Struct("<qQQ")


class Progress:
    """How far a passage has come, read from other threads: buckets that this rank has sent or received."""

    def __init__(self) -> None:
        self.num_buckets = 0


def send(
    communicator: Communicator, manifest: Manifest, buffer: Tensor, *, timeout_s: float, progress: Progress
) -> None:
    """buffer: uint8[>= manifest.nbytes], as staged. Raises GroupBroken at the deadline or where the group broke."""
    if not manifest.buckets:
        return
    deadline_s = time.monotonic() + timeout_s
    communicator.broadcast(_title(manifest).to(buffer.device)).wait(deadline_s)
    before: Work | None = None
    for bucket in manifest.buckets:
        work = communicator.broadcast(_part(buffer, bucket))
        if before is not None:
            before.wait(deadline_s)
            progress.num_buckets += 1
        before = work
    if before is not None:
        before.wait(deadline_s)
        progress.num_buckets += 1


def receive(
    communicator: Communicator, manifest: Manifest, buffer: Tensor, *, timeout_s: float, progress: Progress
) -> float:
    """Fill buffer (uint8[>= manifest.nbytes]); seconds that checksums took. All buckets are received, whatever is wrong
    with one, so that nobody else has to suffer; then raises WeightsMismatch naming the bad ones, and GroupBroken at the
    deadline or where the group broke."""
    verify_s = 0.0
    bad: list[str] = []
    parts = (_part(buffer, bucket) for bucket in manifest.buckets)
    for index, part in enumerate(_arriving(communicator, manifest, parts, timeout_s, progress)):
        started_s = time.perf_counter()
        bad += _difference(manifest, index, part)
        verify_s += time.perf_counter() - started_s
    if bad:
        raise WeightsMismatch(
            f"version {manifest.version}: bad checksums in {len(bad)} of {len(manifest.buckets)}: {'; '.join(bad[:5])}"
        )
    return verify_s


def receive_verified(
    communicator: Communicator, manifest: Manifest, *, device: str, timeout_s: float, progress: Progress
) -> Iterator[Tensor]:
    """The buckets one after the other, each verified, in buffers of the size of a bucket: valid until the one after
    the next is asked for. Raises WeightsMismatch at the first bad one, GroupBroken."""
    largest = max((bucket.nbytes for bucket in manifest.buckets), default=0)
    buffers = [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(3)]
    parts = (buffers[index % 3][: bucket.nbytes] for index, bucket in enumerate(manifest.buckets))
    for index, part in enumerate(_arriving(communicator, manifest, parts, timeout_s, progress)):
        bad = _difference(manifest, index, part)
        if bad:
            raise WeightsMismatch(f"version {manifest.version}: {bad[0]}")
        yield part


def _arriving(
    communicator: Communicator, manifest: Manifest, parts: Iterator[Tensor], timeout_s: float, progress: Progress
) -> Iterator[Tensor]:
    """Each part once it is filled, while the next one is under way."""
    deadline_s = time.monotonic() + timeout_s
    before: tuple[Tensor, Work] | None = None
    for number, part in enumerate(parts):
        if number == 0:
            _check_title(communicator, manifest, part, deadline_s)
        work = communicator.broadcast(part)
        if before is not None:
            before[1].wait(deadline_s)
            progress.num_buckets += 1
            yield before[0]
        before = part, work
    if before is not None:
        before[1].wait(deadline_s)
        progress.num_buckets += 1
        yield before[0]


def _check_title(communicator: Communicator, manifest: Manifest, like: Tensor, deadline_s: float) -> None:
    want = _title(manifest)
    found = torch.zeros_like(want, device=like.device)
    communicator.broadcast(found).wait(deadline_s)
    if not torch.equal(found.cpu(), want):
        version, _, _ = _TITLE.unpack(found.cpu().numpy().tobytes())
        raise WeightsMismatch(
            f"the sender has begun version {version}, this rank expects version {manifest.version}, or another layout "
            "of it"
        )


def _title(manifest: Manifest) -> Tensor:
    """uint8[24]: version, number of buckets, and a checksum of the names, places and checksums."""
    text = repr((manifest.tensors, manifest.buckets)).encode()
    title = _TITLE.pack(manifest.version, len(manifest.buckets), xxhash.xxh3_64_intdigest(text))
    return torch.frombuffer(bytearray(title), dtype=torch.uint8)


def _difference(manifest: Manifest, index: int, part: Tensor) -> list[str]:
    bucket = manifest.buckets[index]
    host = part if part.device.type == "cpu" else part.cpu()
    [found] = checksums(host.numpy().data, [(0, bucket.nbytes)])
    if found == bucket.checksum:
        return []
    end = bucket.offset + bucket.nbytes
    return [f"bucket {index} [{bucket.offset}, {end}): {found:#018x}, sent {bucket.checksum:#018x}"]


def _part(buffer: Tensor, bucket: Bucket) -> Tensor:
    return buffer[bucket.offset : bucket.offset + bucket.nbytes]
