"""Many tensors copied by several threads, each of a single core, as a sender stages them.

Left to torch, every copy is split among OpenMP threads that meet at its end. Where these sleep at barriers
(docs/decisions/sleeping_threads.md), or share their cores, each tensor waits for the slowest of them: SmolLM2, 272
tensors, took 69 ms on 2 cores beside 44 of a memcpy. Here each thread takes the next tensor, or piece of one: 49 ms.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.narrow_threads import narrowed

if TYPE_CHECKING:
    from torch import Tensor

Pair = tuple["Tensor", "Tensor"]
"""target, source: of one shape"""

PIECE_ELEMENTS = 1 << 21
WORTH_BYTES = 4 << 20


def copy_each(pairs: Iterable[Pair]) -> None:
    """One after the other, as torch does it: on devices, and for little."""
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)


class ParallelCopy:
    """Threads are made at the first copy that is worth them, as many as torch uses there, and end with this object."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._made_for = (0, 0)  # process, number of threads

    def __call__(self, pairs: Iterable[Pair]) -> None:
        """Raises what a copy raises, once none is under way any more."""
        pairs = list(pairs)
        num_threads = torch.get_num_threads()
        if num_threads == 1 or not _is_worth_threads(pairs):
            return copy_each(pairs)
        wanted = (os.getpid(), num_threads)  # a forked child has none of its parent's threads
        if self._pool is None or self._made_for != wanted:
            self._pool = narrowed(ThreadPoolExecutor(num_threads, "copy"), num_threads)
            self._made_for = wanted
        pieces = _Pieces(pairs)
        copying = [self._pool.submit(copy_each, pieces) for _ in range(num_threads)]
        for error in [one.exception() for one in copying]:
            if error is not None:
                raise error


class _Pieces:
    """An iterator that several threads share."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pieces = _cut(pairs)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Pair]:
        return self

    def __next__(self) -> Pair:
        with self._lock:
            return next(self._pieces)


def _cut(pairs: Sequence[Pair]) -> Iterator[Pair]:
    for target, source in pairs:
        whole = target.shape == source.shape and source.is_contiguous() and target.is_contiguous()
        if whole and source.numel() > PIECE_ELEMENTS:
            cut = (torch.split(tensor.flatten(), PIECE_ELEMENTS) for tensor in (target, source))
            yield from zip(*cut, strict=True)
        else:
            yield target, source


def _is_worth_threads(pairs: Sequence[Pair]) -> bool:
    on_cpu = all(target.device.type == source.device.type == "cpu" for target, source in pairs)
    return on_cpu and sum(source.nbytes for _, source in pairs) >= WORTH_BYTES
