"""A file in /dev/shm that holds one version at a time: pre-faulted, reused, stamped with what is inside.

Imports no torch: relays and the weights' source use it too. Plain file and mmap: `multiprocessing.shared_memory`
unlinks a segment when any reader's process exits (cpython#82300).
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import secrets
import struct
from pathlib import Path

logger = logging.getLogger(__name__)

DIRECTORY = Path("/dev/shm")
HEADER_BYTES = 4096
"""The stamp's page; the flat buffer begins behind it."""
_STAMP = struct.Struct("<8sq")
_MAGIC = b"headrace"
OVERWRITING = -1
"""the stamp while the bytes behind it change"""


STAMP_BYTES = _STAMP.size


def stamp_bytes(version: int) -> bytes:
    return _STAMP.pack(_MAGIC, version)


def read_stamp(memory: mmap.mmap | memoryview) -> int | None:
    """The version inside, OVERWRITING, or None where this is no segment."""
    magic, version = _STAMP.unpack_from(memory, 0)
    return version if magic == _MAGIC else None


class Segment:
    """One file of a writer: created full size and touched, so that no later copy faults or finds /dev/shm full."""

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
                "make it larger, or set weights.dtype=bfloat16 or weights.staging=false",
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
        """OVERWRITING before the first byte is changed, the version once the last one is."""
        self.map[:STAMP_BYTES] = stamp_bytes(version)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class SegmentFiles:
    """Makes the segments of one writer, by the name `run_id`. What an earlier writer of the same name left behind is
    removed with the first; segments of other names are never touched."""

    def __init__(self, run_id: str, directory: Path) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run_id):
            raise ValueError(f"run_id must be a letter or digit and up to 99 more, '.', '_' or '-', got {run_id!r}")
        self._prefix = f"headrace-{run_id}-weights-"
        self._directory = Path(directory)
        self._incarnation = secrets.token_hex(4)
        self._num_created = 0

    def create(self, nbytes: int) -> Segment:
        if not self._num_created:
            self._remove_leftovers()
        path = self._directory / f"{self._prefix}{self._incarnation}-{self._num_created}"
        self._num_created += 1
        return Segment(path, nbytes)

    def _remove_leftovers(self) -> None:
        ours = re.compile(re.escape(self._prefix) + r"[0-9a-f]{8}-\d+")
        for path in self._directory.iterdir():
            if ours.fullmatch(path.name):
                path.unlink(missing_ok=True)
