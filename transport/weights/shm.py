"""Weights between processes of one host: reused, pre-faulted files in /dev/shm that readers map.

Plain file and mmap: `multiprocessing.shared_memory` unlinks a segment when any reader's process exits (cpython#82300).
Each segment begins with a stamp that names the version inside; the writer clears it before it overwrites, so
that a reader which was too slow learns it before it serves.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import secrets
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.buffers import BufferPool
from headrace.transport.weights.carrier import SenderSettings, StagedVersion
from headrace.transport.weights.checksum import checksums, verify
from headrace.transport.weights.layout import Layout, build_layout, flatten_into, unflatten
from headrace.transport.weights.manifest import Manifest, WeightsMismatch

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

DIRECTORY = Path("/dev/shm")
HEADER_BYTES = 4096
"""The stamp's page; the flat buffer begins behind it."""
_STAMP = struct.Struct("<8sq")
_MAGIC = b"headrace"
_OVERWRITING = -1


class _Segment:
    """One file of the writer: created full size and touched, so that no later copy faults or finds /dev/shm full."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        self.capacity_bytes = nbytes
        size = HEADER_BYTES + max(nbytes, 1)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)  # a write to a full tmpfs would be SIGBUS
            self.map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self._inode = os.fstat(descriptor).st_ino
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OSError(
                error.errno,
                f"no room for {size} bytes of weights in {path.parent} ({error.strerror}); "
                "make it larger or set weights.num_buffers=1",
            ) from error
        finally:
            os.close(descriptor)

    def is_there(self) -> bool:
        """False where somebody removed or cut the file: nobody else can map it any more, and a write may be SIGBUS."""
        try:
            found = os.stat(self.path)
            whole = found.st_ino == self._inode and found.st_size >= HEADER_BYTES + self.capacity_bytes
        except FileNotFoundError:
            whole = False
        if not whole:
            logger.warning("%s was removed or cut by somebody else; it is made again", self.path)
        return whole

    def stamp(self, version: int) -> None:
        _STAMP.pack_into(self.map, 0, _MAGIC, version)

    def buffer(self) -> Tensor:
        return torch.frombuffer(self.map, dtype=torch.uint8, offset=HEADER_BYTES)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class _StagedSegment:
    """See StagedVersion."""

    def __init__(self, segment: _Segment, layout: Layout, version: int, step: int) -> None:
        self._segment = segment
        self._layout = layout
        self.version = version
        self.step = step

    def seal(self) -> Manifest:
        with memoryview(self._segment.map)[HEADER_BYTES : HEADER_BYTES + self._layout.nbytes] as view:
            sums = checksums(view, self._layout.bounds)
        location = str(self._segment.path)
        return self._layout.manifest(
            version=self.version, step=self.step, transport="shm", location=location, checksums=sums
        )


class ShmWriter:
    """The learner's end. `num_buffers` versions can be in use at once; a further one is not staged but skipped.

    run_id: letters, digits, ".", "_", "-"; names the segments. What an earlier writer of the same run left
    behind is removed when the first version is staged; segments of other runs are never touched.
    """

    def __init__(self, settings: SenderSettings, *, directory: Path = DIRECTORY) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", settings.run_id):
            raise ValueError(f"run_id must be 1 to 100 letters, digits, '.', '_' or '-', got {settings.run_id!r}")
        self._prefix = f"headrace-{settings.run_id}-weights-"
        self._directory = Path(directory)
        self._bucket_bytes = settings.bucket_bytes
        self._incarnation = secrets.token_hex(4)
        self._num_created = 0
        self._pool = BufferPool(settings.num_buffers, self._create)

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
            segment.stamp(_OVERWRITING)
            flatten_into(segment.buffer(), tensors, layout)
            segment.stamp(version)
        return _StagedSegment(segment, layout, version, step)

    def release(self, version: int) -> None:
        """See WeightSender."""
        self._pool.release(version)

    def close(self) -> None:
        """See WeightSender. Readers that still map a segment keep their bytes."""
        self._pool.close()

    def _create(self, nbytes: int) -> _Segment:
        if not self._num_created:
            self._remove_leftovers()
        path = self._directory / f"{self._prefix}{self._incarnation}-{self._num_created}"
        self._num_created += 1
        return _Segment(path, nbytes)

    def _remove_leftovers(self) -> None:
        ours = re.compile(re.escape(self._prefix) + r"[0-9a-f]{8}-\d+")
        for path in self._directory.iterdir():
            if ours.fullmatch(path.name):
                path.unlink(missing_ok=True)


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
        magic, version = _STAMP.unpack_from(self._open(), 0)
        if magic != _MAGIC or version != self._manifest.version:
            inside = "bytes being overwritten" if version == _OVERWRITING else f"version {version}"
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
