"""The learner's two threads that compute: the worker thread, with every core it may have, for all that changes weights,
one job at a time; and one beside it, of a single core, for what only reads them. A third one writes files.

No third that computes: torch gives each thread that computes with several cores OpenMP workers of its own, and more of
them than cores stand in each other's way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class RunsBlocking(Protocol):
    """An actor's Context, or who stands in for one."""

    async def run_blocking(
        self, function: Callable[..., T], *args: Any, label: str | None = None, executor: Executor | None = None
    ) -> T: ...


class ComputeThreads:
    """num_threads: of torch, in the worker thread; None: as torch chooses. The threads end with this object."""

    def __init__(self, context: RunsBlocking, *, num_threads: int | None) -> None:
        self._context = context
        self._num_threads = num_threads
        self._alone = ThreadPoolExecutor(1, "learner", initializer=self._begin)
        self._beside = ThreadPoolExecutor(1, "learner-beside")
        self._files = ThreadPoolExecutor(1, "learner-files")

    async def run(self, label: str, function: Callable[..., T], *args: Any) -> T:
        """After all that was asked for before, even where the task that awaited it was cancelled; the time counts as
        busy under `label`."""
        return await self._context.run_blocking(function, *args, label=label, executor=self._alone)

    async def run_beside(self, label: str, function: Callable[..., T], *args: Any) -> T:
        """At once, while `run` may be running."""
        return await self._context.run_blocking(function, *args, label=label, executor=self._beside)

    async def write(self, label: str, function: Callable[..., T], *args: Any) -> T:
        """For what waits for the disk: at once, while the others may be running."""
        return await self._context.run_blocking(function, *args, label=label, executor=self._files)

    def _begin(self) -> None:
        """In the worker thread."""
        import torch

        from headrace.transport.weights.narrow_threads import narrowed  # imports torch

        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        narrowed(self._beside, 1)
