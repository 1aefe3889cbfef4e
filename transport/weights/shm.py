"""Weights between processes of one host: reused, pre-faulted files in /dev/shm that readers map.

Each segment (segment.py) begins with a stamp that names the version inside; the writer clears it before it overwrites,
so that a reader which was too slow learns it before it serves.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.buffers import BufferPool
from headrace.transport.weights.carrier import SenderSettings, StagedVersion
from headrace.transport.weights.checksum import checksums, verify
from headrace.transport.weights.layout import build_layout, flatten_into, unflatten
from headrace.transport.weights.manifest import Manifest, WeightsMismatch
from headrace.transport.weights.parallel_copy import ParallelCopy
from headrace.transport.weights.segment import DIRECTORY, HEADER_BYTES, OVERWRITING, SegmentFiles, read_stamp
from headrace.transport.weights.staged import StagedCopy

if TYPE_CHECKING:
    from torch import Tensor


class ShmWriter:
    """The learner's end. `num_buffers` versions can be in use at once; a further one is not staged but skipped.

    run_id: letters, digits, ".", "_", "-"; names the segments. What an earlier writer of the same run left
    behind is removed when the first version is staged; segments of other runs are never touched.
    """

    def __init__(self, settings: SenderSettings, *, directory: Path = DIRECTORY) -> None:
        self._bucket_bytes = settings.bucket_bytes
        self._copy = ParallelCopy()
        self._pool = BufferPool(settings.num_buffers, SegmentFiles(settings.run_id, directory).create)

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> StagedVersion | None:
        """See WeightSender. Raises ValueError where `version` is not a newer one, OSError where /dev/shm is full."""
        layout = build_layout(tensors, dtype=dtype, bucket_bytes=self._bucket_bytes)
        with self._pool.filling(layout.nbytes, version) as segment:
            if segment is None:
                return None
            segment.stamp(OVERWRITING)
            inside = torch.frombuffer(segment.map, dtype=torch.uint8, offset=HEADER_BYTES)
            flatten_into(inside, tensors, layout, self._copy)
            segment.stamp(version)

        def sums() -> tuple[int, ...]:
            with memoryview(segment.map)[HEADER_BYTES : HEADER_BYTES + layout.nbytes] as view:
                return checksums(view, layout.bounds)

        return StagedCopy(
            layout, version=version, step=step, transport="shm", location=str(segment.path), checksums=sums
        )

    def release(self, version: int) -> None:
        """See WeightSender."""
        self._pool.release(version)

    def close(self) -> None:
        """See WeightSender. Readers that still map a segment keep their bytes."""
        self._pool.close()


class ShmReader:
    """An engine's end: one version, mapped. Several processes may map it at once; none can change it."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        size = HEADER_BYTES + max(manifest.nbytes, 1)
        try:
            with open(manifest.location, "rb") as file:
                if os.fstat(file.fileno()).st_size < size:
                    raise WeightsMismatch(
                        f"version {manifest.version}: {manifest.location} is shorter than its manifest ({size} bytes)"
                    )
                # Private: torch wants a writable buffer, but a write here never reaches the segment.
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        except FileNotFoundError as error:
            raise WeightsMismatch(
                f"version {manifest.version}: {manifest.location} is gone (its learner closed, or this process runs on "
                "another host: shm reaches one host only)"
            ) from error

    def verify(self) -> None:
        """See WeightReceiver."""
        self.check_unchanged()
        with memoryview(self._open())[HEADER_BYTES : HEADER_BYTES + self._manifest.nbytes] as view:
            verify(view, self._manifest)

    def tensors(self, *, include_tied: bool = False) -> Iterator[tuple[str, Tensor]]:
        """See WeightReceiver. Views into the mapped segment; they keep it mapped."""
        buffer = torch.frombuffer(self._open(), dtype=torch.uint8, offset=HEADER_BYTES)
        yield from unflatten(self._manifest, buffer, include_tied=include_tied)

    def copies(self, *, include_tied: bool = False) -> dict[str, Tensor]:
        """Tensors of the caller's own."""
        return {name: tensor.clone() for name, tensor in self.tensors(include_tied=include_tied)}

    def check_unchanged(self) -> None:
        """See WeightReceiver."""
        version = read_stamp(self._open())
        if version != self._manifest.version:
            inside = "bytes being overwritten" if version == OVERWRITING else f"version {version}"
            raise WeightsMismatch(
                f"{self._manifest.location} holds {inside}, not version {self._manifest.version}: it was released"
            )

    def close(self) -> None:
        """See WeightReceiver. The mapping ends with the last view of it."""
        self._map = None

    def _open(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError(f"the reader of version {self._manifest.version} is closed")
        return self._map
