"""The communicator of GPUs: NCCL through CuPy, on a stream of its own, polled, with a deadline at each wait.

CuPy 14 knows no non-blocking communicators (its NcclConfig has `split_share` only, and the code for "in progress" is
unknown to it): creating one blocks, without the interpreter's lock, until every rank has come, and nothing can end it.
So it happens in a thread that is given up at the deadline, only after every member has said that it is ready, and
a process that had to give up MAX_GIVEN_UP of them asks to be ended. Afterwards `abort` ends whatever is under way.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import nccl

from headrace.transport.weights.collective.communicator import GpuLost, GroupBroken

if TYPE_CHECKING:
    from torch import Tensor

MAX_GIVEN_UP = 3
"""threads that wait in NCCL for ranks that never come, each with a little memory and sockets"""
_POLL_S = 200e-6
_INIT_POLL_S = 0.02
_num_given_up = 0


def make_unique_id() -> bytes:
    """128 bytes, as vLLM's `nccl_unique_id_b64` has them too."""
    unique_id = nccl.get_unique_id()
    if isinstance(unique_id, bytes):
        return unique_id
    return bytes(value & 0xFF for value in unique_id)  # CuPy 13: a tuple of signed characters


def join(
    unique_id: bytes,
    *,
    rank: int,
    world_size: int,
    deadline_s: float,
    device: str,
    bucket_bytes: int,
    cancelled: threading.Event,
) -> CupyCommunicator:
    """See communicator.join. `device`: "cuda" or "cuda:N"."""
    global _num_given_up
    if _num_given_up >= MAX_GIVEN_UP:
        raise GpuLost(f"{_num_given_up} NCCL groups of this process never came up; it must be started anew")
    index = int(device.partition(":")[2] or 0)
    made: list[Any] = []
    claim = threading.Lock()  # whoever takes it first decides: the thread that it is in time, the caller that it is not
    done = threading.Event()

    def create() -> None:
        try:
            cupy.cuda.Device(index).use()
            communicator = nccl.NcclCommunicator(world_size, _for_cupy(unique_id), rank)
        except Exception as error:  # whatever it was, it belongs to the one who waits
            made.append(error)
        else:
            if claim.acquire(blocking=False):
                made.append(communicator)
            else:
                communicator.abort()  # the others have gone on without this rank
        done.set()

    threading.Thread(target=create, name="nccl-init", daemon=True).start()
    while not done.wait(_INIT_POLL_S):
        if (cancelled.is_set() or time.monotonic() >= deadline_s) and claim.acquire(blocking=False):
            _num_given_up += 1
            raise GroupBroken(f"rank {rank} of {world_size}: NCCL had not come up when it was given up")
    if isinstance(made[0], Exception):
        raise GroupBroken(f"rank {rank} of {world_size}: {made[0]}") from made[0]
    return CupyCommunicator(made[0], rank, world_size, index)


def _for_cupy(unique_id: bytes) -> Any:
    """CuPy 14 takes bytes, 13 a tuple of signed characters."""
    if int(cupy.__version__.partition(".")[0]) >= 14:
        return unique_id
    return tuple(value - 256 if value > 127 else value for value in unique_id)


class CupyWork:
    """See Work."""

    def __init__(self, communicator: CupyCommunicator, event: Any, buffer: Tensor) -> None:
        self._communicator = communicator
        self._event = event
        self._buffer = buffer  # NCCL reads or fills it meanwhile

    def done(self) -> bool:
        self._communicator.check()
        return bool(self._event.done)

    def wait(self, deadline_s: float) -> None:
        while not self.done():
            if time.monotonic() >= deadline_s:
                raise GroupBroken("a broadcast was not done at the deadline")
            time.sleep(_POLL_S)
        self._communicator.check()


class CupyCommunicator:
    """See Communicator. The lock is held for the calls into NCCL, never while waiting for the device."""

    def __init__(self, made: Any, rank: int, world_size: int, device: int) -> None:
        self._made = made
        self._rank, self._world_size = rank, world_size
        self._device = cupy.cuda.Device(device)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._aborted = False
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    def broadcast(self, buffer: Tensor) -> CupyWork:
        pointer = buffer.data_ptr()
        return self._begin(
            lambda made: made.broadcast(pointer, pointer, buffer.numel(), nccl.NCCL_UINT8, 0, self._stream.ptr), buffer
        )

    def all_reduce_one(self, deadline_s: float) -> None:
        import torch

        one = torch.zeros(1, dtype=torch.float32, device=f"cuda:{self._device.id}")
        torch.cuda.synchronize(self._device.id)
        pointer = one.data_ptr()
        self._begin(
            lambda made: made.allReduce(pointer, pointer, 1, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, self._stream.ptr), one
        ).wait(deadline_s)

    def check(self) -> None:
        with self._lock:
            self._check()

    def abort(self) -> None:
        with self._lock:
            if not self._aborted:
                self._aborted = True
                self._made.abort()

    def destroy(self) -> None:
        """By abort: ncclCommDestroy may wait for ranks that are gone."""
        with contextlib.suppress(nccl.NcclError):
            self.abort()

    def _begin(self, call: Any, buffer: Tensor) -> CupyWork:
        with self._lock, self._device:
            self._check()
            try:
                call(self._made)
            except nccl.NcclError as error:
                raise GroupBroken(f"NCCL: {error}") from error
            return CupyWork(self, self._stream.record(), buffer)

    def _check(self) -> None:
        if self._aborted:
            raise GroupBroken("this group was aborted")
        try:
            self._made.check_async_error()
        except (nccl.NcclError, KeyError) as error:  # KeyError: a code that this CuPy has no name for
            raise GroupBroken(f"NCCL: {error}") from error
