"""A relay's copies of versions that another host's learner staged: segments of this host that engines read as `shm`.

Called by actors/relay. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.transport.weights.buffers import BufferPool
from headrace.transport.weights.manifest import Manifest
from headrace.transport.weights.segment import DIRECTORY, HEADER_BYTES, OVERWRITING, Segment, SegmentFiles


class HostCopy:
    """A version on its way into shared memory of this host. `buffer`: uint8[nbytes], to be filled."""

    def __init__(self, segment: Segment, manifest: Manifest, number: int) -> None:
        self.number = number
        self.manifest = replace(manifest, transport="shm", location=str(segment.path))
        """for the engines of this host; valid once the copy is whole"""
        self.source = manifest
        self.buffer = np.frombuffer(segment.map, np.uint8, manifest.nbytes, HEADER_BYTES)


class HostCopies:
    """Segments of one relay: reused, pre-faulted, stamped as those of the learner. `name`: see SegmentFiles."""

    def __init__(self, name: str, *, num_buffers: int, directory: Path = DIRECTORY) -> None:
        self._files = SegmentFiles(name, directory)
        self._num_buffers = num_buffers
        self._spare: list[Segment] = []
        self._prepared_bytes = -1
        self._pool = BufferPool(num_buffers, self._take)
        self._numbers = itertools.count(1)

    def prepare(self, nbytes: int) -> None:
        """Make and touch what versions of that size need, so that `filling` is quick; to be called in a thread, not in
        two at once. Raises OSError where /dev/shm has no room."""
        if nbytes > self._prepared_bytes:
            self._drop_spare()
            for _ in range(self._num_buffers):
                self._spare.append(self._files.create(nbytes))
            self._prepared_bytes = nbytes

    @contextmanager
    def filling(self, manifest: Manifest) -> Iterator[HostCopy | None]:
        """A free buffer to fill, None where there is none. It holds the version when the block ends, and nothing where
        it raises."""
        number = next(self._numbers)
        with self._pool.filling(manifest.nbytes, number) as segment:
            if segment is None:
                yield None
                return
            segment.stamp(OVERWRITING)
            yield HostCopy(segment, manifest, number)
            segment.stamp(manifest.version)

    def release(self, copy: HostCopy) -> None:
        """Its buffer may be overwritten; who still reads it finds its stamp changed."""
        self._pool.release(copy.number)

    def close(self) -> None:
        """Readers that still map a segment keep their bytes."""
        self._pool.close()
        self._drop_spare()

    def _take(self, nbytes: int) -> Segment:
        return self._spare.pop() if self._spare else self._files.create(nbytes)

    def _drop_spare(self) -> None:
        while self._spare:
            self._spare.pop().remove()
