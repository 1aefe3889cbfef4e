"""Threads in which torch computes with a single core each. Beside them torch's own OpenMP threads stay as they are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

_START_S = 60.0


def narrowed(pool: ThreadPoolExecutor, num_threads: int) -> ThreadPoolExecutor:
    """The pool, all its `num_threads` threads started and narrow. Called where torch computes with as many cores as
    threads that come later shall begin with: what torch was told last is what new threads take over."""
    width = torch.get_num_threads()
    together = threading.Barrier(num_threads)

    def begin() -> None:
        torch.get_num_threads()  # the first call of a thread takes over what was said last, whatever this one was told
        torch.set_num_threads(1)
        together.wait(_START_S)

    try:
        for begun in [pool.submit(begin) for _ in range(num_threads)]:
            begun.result(_START_S)
    finally:
        torch.set_num_threads(width)
    return pool
