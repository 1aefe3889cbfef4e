"""Messages of several frames over a byte stream. A pure state machine: bytes go in, whole messages come out.

Each frame is preceded by 8 bytes, little-endian: twice its length, plus one where another frame of the same message
follows. Small frames are copied out of one reused buffer; a large one is received into memory of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from headrace.transport.errors import CorruptFrame
from headrace.transport.network import Frame

_HEADER = struct.Struct("<Q")
_SCRATCH_BYTES = 256 * 1024
_LARGE_BYTES = 64 * 1024
_JOIN_BELOW_BYTES = 16 * 1024
MAX_FRAMES = 65_536
"""of one message"""


def pack_message(frames: Sequence[Frame]) -> list[Frame]:
    """What to write for one message: its frames with their headers; what is small is joined into one piece."""
    pieces: list[Frame] = []
    small: list[Frame] = []
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        size = len(frame) if type(frame) is bytes else memoryview(frame).nbytes
        small.append(_HEADER.pack(size << 1 | (index != last)))
        if size < _JOIN_BELOW_BYTES:
            small.append(frame)
        else:
            pieces += (b"".join(small), frame)
            small = []
    if small:
        pieces.append(b"".join(small))
    return pieces


class MessageReader:
    """Write received bytes into `buffer()`, then say how many with `received`, which gives the messages that are
    complete now. Frames of at least 64 KiB are read-only views of memory that belongs to the receiver."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._limit = max_frame_bytes
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._begin = self._end = 0
        """what of the scratch buffer is received and not yet parsed"""
        self._frames: list[Frame] = []
        self._large: memoryview | None = None
        self._large_filled = 0
        self._more = 0

    def buffer(self) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        if self._end == _SCRATCH_BYTES:
            self._shift()
        return self._scratch[self._end :]

    def received(self, num_bytes: int) -> list[list[Frame]]:
        """Raises CorruptFrame for a frame above the limit, or a message of too many: the stream is beyond repair."""
        complete: list[list[Frame]] = []
        if self._large is not None:
            self._large_filled += num_bytes
            if self._large_filled < len(self._large):
                return complete
            frame, self._large = self._large, None
            self._take(frame.toreadonly(), complete)
        else:
            self._end += num_bytes
        while self._end - self._begin >= _HEADER.size:
            (word,) = _HEADER.unpack_from(self._scratch, self._begin)
            size = word >> 1
            self._more = word & 1
            if size > self._limit:
                raise CorruptFrame(f"a frame of {size} bytes came, the limit is {self._limit}")
            start = self._begin + _HEADER.size
            if start + size <= self._end:
                self._begin = start + size
                self._take(bytes(self._scratch[start : self._begin]), complete)
            elif size < _LARGE_BYTES:
                if start + size > _SCRATCH_BYTES:
                    self._shift()
                break
            else:
                self._begin_large(size, start)
        if self._begin == self._end:
            self._begin = self._end = 0
        return complete

    def _begin_large(self, size: int, start: int) -> None:
        # numpy's memory is not zeroed first.
        self._large = np.empty(size, np.uint8).data
        self._large_filled = self._end - start
        self._large[: self._large_filled] = self._scratch[start : self._end]
        self._begin = self._end = 0

    def _take(self, frame: Frame, complete: list[list[Frame]]) -> None:
        self._frames.append(frame)
        if not self._more:
            complete.append(self._frames)
            self._frames = []
        elif len(self._frames) >= MAX_FRAMES:
            raise CorruptFrame(f"a message of more than {MAX_FRAMES} frames came")

    def _shift(self) -> None:
        """Move what is not parsed yet to the front."""
        rest = self._end - self._begin
        self._scratch[:rest] = bytes(self._scratch[self._begin : self._end])
        self._begin, self._end = 0, rest
