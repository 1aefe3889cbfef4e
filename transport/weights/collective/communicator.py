"""What a group of ranks can do together, whatever carries it; the back-ends are chosen by name.

    id = make_unique_id("memory")                                  # rank 0; the id travels by message
    communicator = join("memory", id, rank=1, world_size=3, timeout_s=60, device="cpu", bucket_bytes=1 << 26)
    work = communicator.broadcast(buffer)                          # returns at once; root 0; uint8, contiguous
    work.wait(deadline_s)                                          # or work.done()
    communicator.abort()                                           # from any thread: every wait ends in GroupBroken

A missing, dead or slow rank is a deadline at the others, never a hang: the semantics are NCCL's, of which the memory
back-end is the twin. A group that broke is never used again; a new one is made without the culprit.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

BACKENDS = {
    "cupy": "headrace.transport.weights.collective.cupy",
    "memory": "headrace.transport.weights.collective.memory",
}
AUTO = "auto"


class GroupBroken(RuntimeError):
    """The group cannot go on: its deadline passed, it was aborted, or the back-end failed. Says nothing of who is to
    blame: the parameter server compares how far each member came."""


class GpuLost(RuntimeError):
    """This process cannot join groups any more: it must be started anew."""


class Work(Protocol):
    """One broadcast under way."""

    def done(self) -> bool:
        """Whether the buffer was read (root) or filled (others). Raises GroupBroken."""

    def wait(self, deadline_s: float) -> None:
        """Until it is done; `deadline_s` in time.monotonic() seconds. Raises GroupBroken at the deadline too."""


class Communicator(Protocol):
    """One rank's end of a group. Broadcasts happen in the order of the calls, which is the same on each rank."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def broadcast(self, buffer: Tensor) -> Work:
        """From rank 0's buffer (uint8[N], contiguous, on the communicator's device) to everybody's. Returns at once."""

    def all_reduce_one(self, deadline_s: float) -> None:
        """The one-element float32 sum with which vLLM's own communicator warms up. Raises GroupBroken."""

    def check(self) -> None:
        """Raises GroupBroken where an error came up since."""

    def abort(self) -> None:
        """End everything under way at once. Thread-safe, idempotent."""

    def destroy(self) -> None:
        """Give everything back. Idempotent; aborts what is under way."""


def resolve(backend: str) -> str:
    """ "auto" is NCCL where there are GPUs and CuPy, shared memory elsewhere. Raises ValueError for an unknown name."""
    if backend != AUTO:
        if backend not in BACKENDS:
            raise ValueError(f"weights.communicator must be {AUTO}, {' or '.join(BACKENDS)}, got {backend!r}")
        return backend
    import torch

    if torch.cuda.is_available():
        return "cupy"
    logger.info("no GPU: the collective broadcast of weights runs over shared memory, which reaches one host")
    return "memory"


def make_unique_id(backend: str) -> bytes:
    """What the ranks of a group find each other by. Called by rank 0, which must live until all have joined."""
    unique_id: bytes = importlib.import_module(BACKENDS[backend]).make_unique_id()
    return unique_id


def join(
    backend: str,
    unique_id: bytes,
    *,
    rank: int,
    world_size: int,
    timeout_s: float,
    device: str = "cpu",
    bucket_bytes: int = 64 << 20,
    cancelled: threading.Event | None = None,
) -> Communicator:
    """Blocks until all ranks have joined. Raises GroupBroken at the deadline, naming the missing ranks where the
    back-end knows them, and soon after `cancelled` is set. bucket_bytes: what goes in one piece (rank 0 says it)."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, {world_size}), got {rank}")
    module = importlib.import_module(BACKENDS[backend])
    deadline_s = time.monotonic() + timeout_s
    communicator: Communicator = module.join(
        unique_id,
        rank=rank,
        world_size=world_size,
        deadline_s=deadline_s,
        device=device,
        bucket_bytes=bucket_bytes,
        cancelled=cancelled or threading.Event(),
    )
    return communicator
