"""What the tests of the collective broadcast share: a group of threads, and a small version with its bytes."""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from headrace.transport.weights import Manifest
from headrace.transport.weights.checksum import checksums
from headrace.transport.weights.collective.communicator import Communicator, join, make_unique_id
from headrace.transport.weights.layout import build_layout, flatten_into

NUM_RANKS = 3
LONG_S = 120.0
"""of what must succeed, on a machine that others use too"""
SHORT_S = 0.3
"""of what must not"""
BUCKET_BYTES = 1 << 16


def devices(backend: str) -> list[str]:
    if backend == "memory":
        return ["cpu"] * NUM_RANKS
    if importlib.util.find_spec("cupy") is None:
        return []
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


@dataclass
class Group:
    ranks: list[Communicator]
    devices: list[str]

    def close(self) -> None:
        for communicator in self.ranks:
            communicator.destroy()


def joined(backend: str, pool: ThreadPoolExecutor, num_ranks: int = NUM_RANKS) -> Group:
    unique_id = make_unique_id(backend)
    places = devices(backend)
    joining: list[Future[Communicator]] = [
        pool.submit(
            join, backend, unique_id, rank=rank, world_size=num_ranks, timeout_s=LONG_S,
            device=places[rank], bucket_bytes=BUCKET_BYTES,
        )
        for rank in range(num_ranks)
    ]  # fmt: skip
    return Group([future.result() for future in joining], places)


def version(number: int, *, nbytes: int = 5 * BUCKET_BYTES + 128, seed: int = 0) -> tuple[Manifest, torch.Tensor]:
    """A sealed version of one tensor, and its flat buffer."""
    weight = torch.randn(nbytes // 4, generator=torch.Generator().manual_seed(seed))
    layout = build_layout({"weight": weight}, bucket_bytes=BUCKET_BYTES)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    flatten_into(buffer, {"weight": weight}, layout)
    sums = checksums(buffer.numpy().data, layout.bounds)
    manifest = layout.manifest(version=number, step=number, transport="nccl", location="", checksums=sums)
    return manifest, buffer
