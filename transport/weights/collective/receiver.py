"""A receiving rank: joins groups, brings versions near into its staging buffer, verified, while the engine decodes.

One for each worker of an engine; every method that blocks is called in a thread. The staging buffer is made once and
reused: it is free again when its version was loaded (`ReceivedWeights.close`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.checksum import verify
from headrace.transport.weights.collective import passage
from headrace.transport.weights.collective.communicator import GroupBroken
from headrace.transport.weights.collective.rank import Rank
from headrace.transport.weights.layout import unflatten
from headrace.transport.weights.manifest import Manifest, TensorSpec, check_layout

if TYPE_CHECKING:
    from torch import Tensor


class ReceivedWeights:
    """See WeightReceiver: one version in this process's own memory, verified as it came."""

    def __init__(self, manifest: Manifest, buffer: Tensor, *, send_s: float = 0.0, verify_s: float = 0.0) -> None:
        self._manifest = manifest
        self._buffer: Tensor | None = buffer
        self.send_s, self.verify_s = send_s, verify_s

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def verify(self) -> None:
        verify(self._open()[: self._manifest.nbytes].cpu().numpy().data, self._manifest)

    def tensors(self, *, include_tied: bool = False) -> Iterator[tuple[str, Tensor]]:
        yield from unflatten(self._manifest, self._open(), include_tied=include_tied)

    def check_unchanged(self) -> None:
        """Nobody else can write there."""

    def close(self) -> None:
        self._buffer = None

    def _open(self) -> Tensor:
        if self._buffer is None:
            raise ValueError(f"the staging buffer of version {self._manifest.version} was given back")
        return self._buffer


class CollectiveReceiver:
    """device: of the staging buffer ("cpu", "cuda:0")."""

    def __init__(self, *, device: str = "cpu", rank: Rank | None = None) -> None:
        self._device = device
        self._rank = rank or Rank(device=device)
        self._buffer: Tensor | None = None
        self._one = threading.Lock()

    def join(
        self,
        group: str,
        backend: str,
        unique_id: bytes,
        *,
        rank: int,
        world_size: int,
        timeout_s: float,
        keep: Collection[str] = (),
    ) -> None:
        """Blocks. Raises GroupBroken at the deadline or where it is aborted."""
        self._rank.keep((*keep, group))
        self._rank.join(group, backend, unique_id, rank=rank, world_size=world_size, timeout_s=timeout_s)

    def receive(self, group: str, manifest: Manifest, *, timeout_s: float) -> ReceivedWeights:
        """Blocks until the version lies in the staging buffer, verified. Raises WeightsMismatch, GroupBroken."""
        check_layout(manifest)
        if not self._one.acquire(timeout=timeout_s):
            raise GroupBroken(f"an earlier receipt has not ended within {timeout_s:g} s")
        try:
            buffer = self._staging(manifest.nbytes)
            started_s = time.perf_counter()
            try:
                with self._rank.passage(group) as (communicator, progress):
                    verify_s = passage.receive(communicator, manifest, buffer, timeout_s=timeout_s, progress=progress)
            except BaseException:
                self._buffer = None  # a broadcast that was given up may write there still
                raise
            send_s = time.perf_counter() - started_s - verify_s
        finally:
            self._one.release()
        return ReceivedWeights(manifest, buffer, send_s=send_s, verify_s=verify_s)

    def arriving(self, group: str, manifest: Manifest, *, timeout_s: float) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as they arrive, each of verified buckets, for engines without a staging buffer: each tensor is
        the caller's. Raises WeightsMismatch, GroupBroken."""
        check_layout(manifest)
        with self._rank.passage(group) as (communicator, progress):
            parts = passage.receive_verified(
                communicator, manifest, device=self._device, timeout_s=timeout_s, progress=progress
            )
            yield from assemble(manifest, parts, device=self._device)

    def abort(self, group: str) -> int:
        """See Rank.abort."""
        return self._rank.abort(group)

    def _staging(self, nbytes: int) -> Tensor:
        if self._buffer is None or self._buffer.numel() < nbytes:
            self._buffer = None  # before the larger one is made
            self._buffer = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=self._device)
        return self._buffer

    def close(self) -> None:
        self._rank.close()
        self._buffer = None


def assemble(manifest: Manifest, parts: Iterator[Tensor], *, device: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors out of consecutive buckets. Holds one tensor beside the buckets; tied names are left out."""
    bucket_start, bucket = 0, torch.empty(0, dtype=torch.uint8, device=device)
    for spec in manifest.tensors:
        flat = torch.empty(spec.nbytes, dtype=torch.uint8, device=device)
        filled = 0
        while filled < spec.nbytes:
            start = spec.offset + filled - bucket_start
            if start >= bucket.numel():
                bucket_start += bucket.numel()
                bucket = next(parts)
                continue
            piece = bucket[start : start + spec.nbytes - filled]
            flat[filled : filled + piece.numel()].copy_(piece)
            filled += piece.numel()
        yield from _view(spec, flat)
    for _ in parts:  # nothing is left behind in the group
        pass


def _view(spec: TensorSpec, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    at_zero = TensorSpec(spec.name, spec.dtype, spec.shape, 0, spec.nbytes)
    manifest = Manifest(0, 0, "", "", spec.nbytes, (at_zero,), (), {})
    yield from unflatten(manifest, flat, include_tied=False)
