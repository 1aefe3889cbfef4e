"""How the memory that one sender shares is cut into blocks, of sizes that nobody knows beforehand.

A block of a size that was used before is used again, while its pages are warm. Where none is free, a new one is cut
from the gap; where the gap is too small, the largest that lies between blocks in use becomes the gap.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

_PAGE_BYTES = 4096
_LOOK_AT = 4
"""Blocks of a size that are asked whether they are free before a new one is cut: those used longest ago."""


class Cuts:
    """`in_use`: [blocks] uint8, not 0 while somebody uses that block; only read here."""

    def __init__(self, capacity_bytes: int, in_use: npt.NDArray[np.uint8]) -> None:
        self._capacity_bytes = capacity_bytes
        self._in_use = in_use
        self._begin = np.zeros(len(in_use), np.int64)
        self._end = np.zeros(len(in_use), np.int64)
        self._numbers = list(range(len(in_use)))[::-1]
        """of no block"""
        self._of_size: dict[int, deque[int]] = {}
        """numbers of the blocks, used longest ago first"""
        self._gap, self._gap_end = 0, capacity_bytes

    def free_block(self, num_bytes: int) -> tuple[int, int] | None:
        """Number and beginning of a block of at least `num_bytes`; None where there is no room."""
        step = max(_PAGE_BYTES, 1 << max(0, num_bytes.bit_length() - 3))
        size = -(-num_bytes // step) * step
        blocks = self._of_size.setdefault(size, deque())
        for _ in range(min(len(blocks), _LOOK_AT)):
            number = blocks[0]
            blocks.rotate(-1)
            if not self._in_use[number]:
                return number, int(self._begin[number])
        if (self._gap_end - self._gap < size or not self._numbers) and not self._gather(size):
            return None
        number, begin = self._numbers.pop(), self._gap
        self._gap += size
        self._begin[number], self._end[number] = begin, self._gap
        self._of_size.setdefault(size, deque()).append(number)
        return number, begin

    def _gather(self, size: int) -> bool:
        """Make the largest gap between blocks in use the one to cut from. False where it is smaller than `size`, or
        all numbers are in use: nothing has changed then."""
        used = np.flatnonzero(self._in_use.copy())  # another process clears flags meanwhile, which numpy takes ill
        used = used[np.argsort(self._begin[used])]
        begins = np.append(self._end[used][::-1], 0)[::-1]
        ends = np.append(self._begin[used], self._capacity_bytes)
        widest = int(np.argmax(ends - begins))
        if ends[widest] - begins[widest] < size or len(used) == len(self._in_use):
            return False
        self._gap, self._gap_end = int(begins[widest]), int(ends[widest])
        self._of_size = {}
        for number in used.tolist():
            self._of_size.setdefault(int(self._end[number] - self._begin[number]), deque()).append(number)
        self._numbers = sorted(set(range(len(self._in_use))).difference(used.tolist()), reverse=True)
        return True
