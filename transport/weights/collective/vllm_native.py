"""Rank 0 towards vLLM's own `nccl` back-end, in a vLLM that has nothing of ours: what its workers expect, and when.

    unique_id = make_unique_id("cupy")           # to the workers: nccl_unique_id_b64, rank_offset=1, world_size
    communicator = join("cupy", unique_id, rank=0, …)     # while /init_weight_transfer_engine is out: all enter at once
    warm_up(communicator, timeout_s=…)           # their first collective: an all-reduce of one float32
    broadcast(communicator, manifest, buffer, packed=True, timeout_s=…)     # while /update_weights is out

Unpacked: each tensor by itself, in the manifest's order, which is that of the names that /update_weights was given.
Packed: whole tensors, their bytes end to end, are put together until a chunk exceeds `chunk_bytes`. No checksums there:
vLLM loads what comes. NCCL counts a broadcast in bytes, so that uint8 here meets any dtype there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.collective.passage import Progress
from headrace.transport.weights.layout import DTYPES
from headrace.transport.weights.manifest import Manifest, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.transport.weights.collective.communicator import Communicator, Work

BACKEND = "cupy"
"""The communicator that vLLM's workers can meet: theirs is NCCL, whatever ours is."""
CHUNK_BYTES = 1 << 30
"""vLLM's packed_buffer_size_bytes, where neither side says another; the two must be equal."""


def warm_up(communicator: Communicator, *, timeout_s: float) -> None:
    """Once after the join. Raises GroupBroken."""
    communicator.all_reduce_one(time.monotonic() + timeout_s)


def broadcast(
    communicator: Communicator,
    manifest: Manifest,
    buffer: Tensor,
    *,
    packed: bool,
    timeout_s: float,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress | None = None,
) -> None:
    """All tensors of the version; tied names are vLLM's to tie. buffer: uint8[>= manifest.nbytes], as staged. Two
    broadcasts are under way at a time; `progress` counts them. Raises GroupBroken at the deadline or where the group
    broke."""
    progress = progress or Progress()
    deadline_s = time.monotonic() + timeout_s
    before: Work | None = None
    for chunk in chunks(manifest, chunk_bytes) if packed else ([spec] for spec in manifest.tensors):
        work = communicator.broadcast(_joined(buffer, chunk))
        if before is not None:
            before.wait(deadline_s)
            progress.num_buckets += 1
        before = work
    if before is not None:
        before.wait(deadline_s)
        progress.num_buckets += 1


def chunks(manifest: Manifest, chunk_bytes: int = CHUNK_BYTES) -> Iterator[list[TensorSpec]]:
    """As vLLM's packed_nccl_broadcast_consumer cuts them: the tensor that makes a chunk too large is its last. Raises
    ValueError for a tensor that vLLM could not take out of its chunk: it begins at no multiple of its itemsize."""
    chunk: list[TensorSpec] = []
    nbytes = 0
    for spec in manifest.tensors:
        itemsize = DTYPES[spec.dtype].itemsize
        if nbytes % itemsize:
            raise ValueError(
                f"{spec.name} ({spec.dtype}) would begin at byte {nbytes} of a packed chunk, not at a multiple of "
                f"{itemsize}, as vLLM needs it; use packed=False on both sides"
            )
        chunk.append(spec)
        nbytes += spec.nbytes
        if nbytes > chunk_bytes:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk


def _joined(buffer: Tensor, specs: list[TensorSpec]) -> Tensor:
    """Without the gaps between tensors that a staged buffer has; a single tensor is not copied."""
    parts = [buffer[spec.offset : spec.offset + spec.nbytes] for spec in specs]
    if len(parts) == 1:
        return parts[0]
    joined = torch.cat(parts)
    if joined.device.type != "cpu":
        torch.cuda.current_stream(joined.device).synchronize()  # the broadcast has a stream of its own
    return joined
