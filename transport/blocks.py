"""Memory that two processes of one host map: one puts the arrays of its messages there, the other uses them in place.

The sender copies a message's arrays into one block and tells its number, place and sizes. The receiver's arrays are
read-only views of that block; when the last of them is gone a byte in the first page says so, and the sender uses the
block again. Where there is no room, because much is under way or the receiver keeps what it got, the sender does
without: nothing ever waits for a block.

The memory is a file without a name (memfd): nothing is left behind, whoever is killed. The receiver opens it by its
owner's process and descriptor, and maps it only where it bears that owner's incarnation and can no longer shrink:
reading a file that somebody cut is SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.transport.cuts import Cuts
from headrace.transport.errors import CorruptFrame
from headrace.transport.forks import disown_in_forked_children
from headrace.transport.network import MAX_SHARED_MEMORY_BYTES, Frame

MAX_BLOCKS = 4096
"""as many as the first page has bytes: 1 while a block is in use"""
MAX_ARRAYS = 1024
"""of one message; one with more travels in frames"""
_PAGE_BYTES = 4096
_ALIGNMENT = 64

Place = list[int]
"""[block, where it begins, bytes of each array …]; the arrays follow each other, aligned to 64 bytes"""


@dataclass(frozen=True, slots=True)
class Locator:
    """Where another process of this host finds the memory."""

    process_id: int
    descriptor: int
    capacity_bytes: int


class SendBlocks:
    """`owner`: the sender's incarnation. Raises OSError where the system gives no memory or descriptor."""

    def __init__(self, owner: str, capacity_bytes: int) -> None:
        descriptor = os.memfd_create(_name(owner), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _PAGE_BYTES + capacity_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(descriptor, _PAGE_BYTES + capacity_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor: int | None = descriptor
        self.locator = Locator(os.getpid(), descriptor, capacity_bytes)
        self._in_use = np.frombuffer(memory, np.uint8, MAX_BLOCKS)
        self._data = np.frombuffer(memory, np.uint8, offset=_PAGE_BYTES)
        self._cuts = Cuts(capacity_bytes, self._in_use)

    def put(self, frames: Sequence[Frame]) -> Place | None:
        """Copy the arrays of one message in, none of them empty. None where there is no room."""
        if len(frames) > MAX_ARRAYS:
            return None
        sizes = [len(frame) if type(frame) is bytes else memoryview(frame).nbytes for frame in frames]
        block = self._cuts.free_block(sum(map(_aligned, sizes)))
        if block is None:
            return None
        number, begin = block
        at = begin
        for frame, size in zip(frames, sizes, strict=True):
            self._data[at : at + size] = np.frombuffer(frame, np.uint8)
            at += _aligned(size)
        self._in_use[number] = 1
        return [number, begin, *sizes]

    def mapped(self) -> None:
        """The receiver has it: nobody opens it any more."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """What is under way stays: the receiver's mapping keeps the memory."""
        self.mapped()
        del self._in_use, self._data, self._cuts


class ReceiveBlocks:
    """`owner`: the incarnation of the process that told the locator. Raises OSError where its memory cannot be opened
    (another user's, another container's), CorruptFrame where what lies there is not that process's memory."""

    def __init__(self, owner: str, locator: Locator) -> None:
        capacity = locator.capacity_bytes
        if not 0 < capacity <= MAX_SHARED_MEMORY_BYTES:
            raise CorruptFrame(f"nobody shares {capacity} bytes of memory")
        path = f"/proc/{locator.process_id}/fd/{locator.descriptor}"
        # Before it is opened: opening a terminal or a pipe would have effects.
        if os.readlink(path) != f"/memfd:{_name(owner)} (deleted)":
            raise CorruptFrame(f"descriptor {locator.descriptor} of process {locator.process_id} is not {owner}'s")
        # A lease on it must not hold this process up.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if not is_sealed or os.fstat(descriptor).st_size < _PAGE_BYTES + capacity:
                raise CorruptFrame(f"the memory of {owner} is smaller than it said, or could become so")
            memory = mmap.mmap(descriptor, _PAGE_BYTES + capacity)
        finally:
            os.close(descriptor)
        self._is_disowned = False
        disown_in_forked_children(self)
        self._capacity_bytes = capacity
        self._in_use = memoryview(memory)[:MAX_BLOCKS]
        self._data = np.frombuffer(memory, np.uint8, offset=_PAGE_BYTES)

    def take(self, place: Sequence[Any]) -> list[Frame]:
        """The arrays of one message: read-only views that keep their block. Raises CorruptFrame."""
        if not 3 <= len(place) <= MAX_ARRAYS + 2 or not all(
            type(one) is int and 0 <= one <= self._capacity_bytes for one in place
        ):
            raise CorruptFrame(f"no arrays can lie at {place!r:.100}")
        number, begin, *sizes = place
        if not all(sizes):
            raise CorruptFrame("no empty array lies in shared memory")
        end = begin + sum(map(_aligned, sizes))
        if number >= MAX_BLOCKS or end > self._capacity_bytes:
            raise CorruptFrame(
                f"block {number} to {end} is none of {MAX_BLOCKS} blocks in {self._capacity_bytes} bytes"
            )
        block = self._data[begin:end].view(_Block)
        block.memory, block.number = self, number
        view = block.data.toreadonly()
        frames: list[Frame] = []
        at = 0
        for size in sizes:
            frames.append(view[at : at + size])
            at += _aligned(size)
        return frames

    def release(self, number: int) -> None:
        """The last view of that block is gone: the sender may use it again."""
        if not self._is_disowned:
            self._in_use[number] = 0

    def disown(self) -> None:
        """This is a forked child: that its copies of the views go says nothing about its parent's."""
        self._is_disowned = True


class _Block(np.ndarray):
    """What the views of a message keep alive."""

    memory: ReceiveBlocks | None = None
    number = 0

    def __del__(self) -> None:
        if self.memory is not None:
            self.memory.release(self.number)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _name(owner: str) -> str:
    return f"headrace-{owner}"
