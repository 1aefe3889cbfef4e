"""The communicator of one host: a ring of two slots in memory that all ranks map. NCCL's twin where there is no GPU.

The memory is rank 0's, without a name (memfd), reached by the others through /proc: whoever dies, nothing is left.
Rank 0 fills slot n mod 2 once every other rank has taken message n − 2; each rank counts what it has taken. All waits
are short polls with a deadline and see the abort flag; a rank that is dead or slow is seen by its counter alone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import re
import secrets
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from headrace.transport.weights.collective.communicator import GroupBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

NUM_SLOTS = 2
_MAGIC = 0x68656164_72616365
_MIN_POLL_S, _MAX_POLL_S = 20e-6, 1e-3
# The header, int64 each: what rank 0 writes once, the abort flag, and the length of the message in each slot …
_READY, _WORLD, _SLOT_BYTES, _ABORTED, _LENGTHS = 0, 1, 2, 3, 4
# … then, a cache line a rank: whether it has joined, and how many messages it has put (rank 0) or taken.
_RANKS, _RANK_STRIDE, _JOINED, _COUNT = 8, 8, 0, 1
_HEADER_BYTES = 8 * 4096
MAX_RANKS = (_HEADER_BYTES // 8 - _RANKS) // _RANK_STRIDE


def make_unique_id() -> bytes:
    descriptor = os.memfd_create("headrace-group", os.MFD_CLOEXEC)
    nonce = secrets.randbits(62)
    os.ftruncate(descriptor, 8)
    os.pwrite(descriptor, nonce.to_bytes(8, "little"), 0)
    return f"/proc/{os.getpid()}/fd/{descriptor}:{nonce}".encode()


def join(
    unique_id: bytes,
    *,
    rank: int,
    world_size: int,
    deadline_s: float,
    device: str,
    bucket_bytes: int,
    cancelled: threading.Event,
) -> MemoryCommunicator:
    """See communicator.join."""
    if world_size > MAX_RANKS:
        raise ValueError(f"a group over shared memory has at most {MAX_RANKS} ranks, got {world_size}")
    if device != "cpu":
        raise ValueError(f"the memory communicator moves host memory, got {device!r}; use weights.communicator=cupy")
    group = _Id.parse(unique_id)
    pause = _Pause(deadline_s, cancelled)
    with contextlib.ExitStack() as stack:
        if rank == 0:
            group.claim()
            stack.callback(os.close, group.descriptor)  # at the end: whoever has joined has mapped it
            ring = _create(group, world_size, bucket_bytes)
        else:
            ring = _open(group, pause)
        communicator = MemoryCommunicator(ring, rank, world_size)
        try:
            communicator.wait_for_all(pause)
        except BaseException:
            communicator.destroy()
            raise
    return communicator


class _Id(NamedTuple):
    """Rank 0's file, as its process names it, and the number that is written there until it is used."""

    pid: int
    descriptor: int
    nonce: int

    @classmethod
    def parse(cls, unique_id: bytes) -> _Id:
        found = re.fullmatch(rb"/proc/(\d{1,10})/fd/(\d{1,10}):(\d{1,19})", unique_id)
        if found is None:
            raise GroupBroken(f"{unique_id[:80]!r} is no id of a group over shared memory")
        return cls(*(int(part) for part in found.groups()))

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/fd/{self.descriptor}"

    def claim(self) -> None:
        """As rank 0, once. Another's id may have the number of a file of this process that is something else."""
        try:
            is_mine = self.pid == os.getpid() and os.pread(self.descriptor, 8, 0) == self.nonce.to_bytes(8, "little")
            if is_mine:
                os.pwrite(self.descriptor, bytes(8), 0)
        except OSError:  # no such file, a socket, one that is not open for writing
            is_mine = False
        if not is_mine:
            raise GroupBroken("this id was made by another process, or used before")


def _create(group: _Id, world_size: int, slot_bytes: int) -> mmap.mmap:
    size = _HEADER_BYTES + NUM_SLOTS * slot_bytes
    if size > (available := _available_bytes()):  # no file system limits this file: the kernel would kill for it
        raise GroupBroken(
            f"no {size} bytes of memory for a group, {available} are available; lower weights.bucket_bytes"
        )
    try:
        os.posix_fallocate(group.descriptor, 0, size)  # now, not at a first write
        ring = mmap.mmap(group.descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError as error:
        raise GroupBroken(f"no {size} bytes of memory for a group ({error.strerror})") from error
    with memoryview(ring).cast("q") as words:
        words[_READY] = 0
        words[_WORLD], words[_SLOT_BYTES] = world_size, slot_bytes
        words[_READY] = _MAGIC ^ group.nonce
    return ring


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _open(group: _Id, pause: _Pause) -> mmap.mmap:
    while True:
        try:
            descriptor = os.open(group.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise GroupBroken(
                f"rank 0's memory {group.path} is gone ({error.strerror}); did the learner die?"
            ) from error
        try:
            size = os.fstat(descriptor).st_size
            if size > _HEADER_BYTES:
                ring = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
                with memoryview(ring).cast("q") as words:
                    if words[_READY] == _MAGIC ^ group.nonce:
                        return ring
                ring.close()
        finally:
            os.close(descriptor)
        pause.rest("rank 0 has not joined")


class _Pause:
    """Rests between two looks, each a little longer; raises GroupBroken at the deadline, or where it is cancelled."""

    def __init__(self, deadline_s: float = float("inf"), cancelled: threading.Event | None = None) -> None:
        self._deadline_s = deadline_s
        self._cancelled = cancelled
        self._poll_s = _MIN_POLL_S

    def rest(self, what: str) -> None:
        if self._cancelled is not None and self._cancelled.is_set():
            raise GroupBroken(f"{what} when it was aborted")
        if time.monotonic() >= self._deadline_s:
            raise GroupBroken(f"{what} at the deadline")
        time.sleep(self._poll_s)
        self._poll_s = min(_MAX_POLL_S, self._poll_s * 1.5)


class MemoryWork:
    """See Work."""

    def __init__(self) -> None:
        self._finished = threading.Event()
        self._error: GroupBroken | None = None

    def finish(self, error: GroupBroken | None) -> None:
        self._error = error
        self._finished.set()

    def done(self) -> bool:
        if not self._finished.is_set():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self, deadline_s: float) -> None:
        if not self._finished.wait(max(0.0, deadline_s - time.monotonic())):
            raise GroupBroken("a broadcast was not done at the deadline")
        self.done()


class MemoryCommunicator:
    """See Communicator. Its thread does one broadcast after the other; it ends with destroy, or with the process. The
    queue holds what the caller has begun and not waited for: two buckets, in rank.py's loops."""

    def __init__(self, ring: mmap.mmap, rank: int, world_size: int) -> None:
        self._ring = ring
        self._words = memoryview(ring)[:_HEADER_BYTES].cast("q")
        self._bytes = np.frombuffer(ring, dtype=np.uint8)
        self._rank, self._world_size = rank, world_size
        self._slot_bytes = self._words[_SLOT_BYTES]
        self._count = 0
        self._closed = False
        self._jobs: queue.SimpleQueue[tuple[Tensor, MemoryWork] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    def wait_for_all(self, pause: _Pause) -> None:
        """Raises GroupBroken naming the ranks that have not joined."""
        if self._words[_WORLD] != self._world_size:
            raise GroupBroken(f"rank {self._rank} expects {self._world_size} ranks, rank 0 {self._words[_WORLD]}")
        self._words[_place(self._rank, _JOINED)] = 1
        while True:
            missing = [r for r in range(self._world_size) if not self._words[_place(r, _JOINED)]]
            if not missing:
                return
            self.check()
            pause.rest(f"ranks {missing} of {self._world_size} have not joined")

    def broadcast(self, buffer: Tensor) -> MemoryWork:
        work = MemoryWork()
        with self._lock:
            if self._closed:
                raise GroupBroken("this group was left")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weights-broadcast", daemon=True)
                self._thread.start()
            self._jobs.put((buffer, work))
        return work

    def all_reduce_one(self, deadline_s: float) -> None:
        """Here a barrier: nobody's sum is asked for, only that all meet. Each rank's element would be 0."""
        self.broadcast(torch.zeros(4, dtype=torch.uint8)).wait(deadline_s)

    def check(self) -> None:
        if self._closed:
            raise GroupBroken("this group was left")
        if self._words[_ABORTED]:
            raise GroupBroken(f"aborted by rank {self._words[_ABORTED] - 1}")

    def abort(self) -> None:
        with self._lock, contextlib.suppress(ValueError):  # released already
            self._words[_ABORTED] = self._words[_ABORTED] or self._rank + 1

    def destroy(self) -> None:
        self.abort()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # it sees the flag within a millisecond
        self._words.release()
        del self._bytes, self._ring  # the mapping ends with the last view of it

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        move = self._put if self._rank == 0 else self._take
        while (job := self._jobs.get()) is not None:
            buffer, work = job
            try:
                self._move(buffer, move)
            except GroupBroken as error:
                work.finish(error)
            except Exception as error:  # whatever it was, who waits must hear of it
                work.finish(GroupBroken(f"{type(error).__name__}: {error}"))
            else:
                work.finish(None)

    def _move(self, buffer: Tensor, move: Callable[[np.ndarray], None]) -> None:
        flat = buffer.numpy()
        for start in range(0, len(flat), self._slot_bytes):
            move(flat[start : start + self._slot_bytes])

    def _put(self, piece: np.ndarray) -> None:
        self._until_taken(self._count - NUM_SLOTS + 1)
        slot, length = self._slot(len(piece))
        np.copyto(slot, piece)  # without the interpreter's lock
        self._words[length] = len(piece)
        self._count += 1
        self._words[_place(0, _COUNT)] = self._count

    def _until_taken(self, count: int) -> None:
        """Until every other rank has taken `count` messages."""
        pause = _Pause()
        while any(self._words[_place(r, _COUNT)] < count for r in range(1, self._world_size)):
            self.check()
            pause.rest("")

    def _take(self, piece: np.ndarray) -> None:
        pause = _Pause()
        while self._words[_place(0, _COUNT)] <= self._count:
            self.check()
            pause.rest("")
        slot, length = self._slot(len(piece))
        if self._words[length] != len(piece):
            raise GroupBroken(
                f"rank {self._rank} expects {len(piece)} bytes as message {self._count}, rank 0 sent "
                f"{self._words[length]}: the two do not go by the same manifest"
            )
        np.copyto(piece, slot)
        self._count += 1
        self._words[_place(self._rank, _COUNT)] = self._count

    def _slot(self, nbytes: int) -> tuple[np.ndarray, int]:
        index = self._count % NUM_SLOTS
        start = _HEADER_BYTES + index * self._slot_bytes
        return self._bytes[start : start + nbytes], _LENGTHS + index


def _place(rank: int, field: int) -> int:
    return _RANKS + rank * _RANK_STRIDE + field
