"""What the trainer and the workbench ask of the ranks. A learner of one process is `ALONE`."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """All but `announce` are meetings: they return when every rank has called them, and raise RuntimeError where one is
    gone. In the worker thread only."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def files(self) -> Any:
        """A group (torch.distributed) for meetings of threads that write files."""

    def announce(self, whose: str, method: str, *args: Any) -> None:
        """At rank 0, before it calls `method` of its own: the others are to call theirs. Elsewhere nothing."""

    def gather(self, value: T) -> list[T]:
        """Each rank's, in the order of ranks, at every rank."""

    def any(self, flag: bool) -> bool:
        """Whether it is true at one rank at least."""

    def shard(self, model: Any, parts: list[Any]) -> None:
        """From now on each rank holds a part of the model's weights, which come together when `model`, or one of its
        `parts`, computes; gradients are summed over ranks."""


class _Alone:
    rank = 0
    size = 1
    files = None

    def announce(self, whose: str, method: str, *args: Any) -> None:
        pass

    def gather(self, value: T) -> list[T]:
        return [value]

    def any(self, flag: bool) -> bool:
        return flag

    def shard(self, model: Any, parts: list[Any]) -> None:
        pass


ALONE: Ranks = _Alone()
