"""The learner's two threads that compute: the worker thread, with every core it may have, for all that changes weights,
one job at a time; and one beside it, of a single core, for what only reads them.

No third: torch gives each thread that computes OpenMP workers of its own. Once there are more of them than cores,
OpenMP puts them to sleep between any two operations instead of letting them wait; on 2 cores the many small copies of
staging took 64 ms for SmolLM2 where they take 46.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.transport import Context

T = TypeVar("T")

_START_S = 60.0


class ComputeThreads:
    """num_threads: of torch, in the worker thread; None: as torch chooses. The threads end with this object."""

    def __init__(self, context: Context, *, num_threads: int | None) -> None:
        self._context = context
        self._num_threads = num_threads
        self._alone = ThreadPoolExecutor(1, "learner", initializer=self._begin)
        self._beside = ThreadPoolExecutor(1, "learner-beside")

    async def run(self, label: str, function: Callable[..., T], *args: Any) -> T:
        """After all that was asked for before, even where the task that awaited it was cancelled; the time counts as
        busy under `label`."""
        return await self._context.run_blocking(function, *args, label=label, executor=self._alone)

    async def run_beside(self, label: str, function: Callable[..., T], *args: Any) -> T:
        """At once, while `run` may be running."""
        return await self._context.run_blocking(function, *args, label=label, executor=self._beside)

    def _begin(self) -> None:
        """In the worker thread."""
        import torch

        num_threads = self._num_threads or torch.get_num_threads()
        self._beside.submit(_be_narrow).result(_START_S)
        torch.set_num_threads(num_threads)  # said last, it is also what other threads of this process begin with


def _be_narrow() -> None:
    import torch

    torch.get_num_threads()  # the first call of a thread takes over what was said last, whatever this one was told
    torch.set_num_threads(1)
