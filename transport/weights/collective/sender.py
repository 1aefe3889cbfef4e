"""The learner's end: versions staged in private buffers, and rank 0 of the groups that they are broadcast in.

A buffer is a plain one beside the model: host memory on a CPU, device memory on a GPU, where a copy takes
milliseconds. `stage`, `seal`, `release` and `close` are WeightSender's; `open_group`, `joined`, `send` and `abort`
block and are called in threads, as the parameter server asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.carrier import SenderSettings
from headrace.transport.weights.checksum import checksums
from headrace.transport.weights.collective import passage
from headrace.transport.weights.collective.communicator import GroupBroken, make_unique_id, resolve
from headrace.transport.weights.collective.passage import Progress
from headrace.transport.weights.collective.rank import Rank
from headrace.transport.weights.layout import Layout, build_layout, flatten_into
from headrace.transport.weights.manifest import Manifest, WeightsMismatch

if TYPE_CHECKING:
    from torch import Tensor

STAGED, IN_PLACE = "staged", "in_place"
"""A manifest's `location`: whether receivers bring the version near before they pause, or (weights.staging=false) pause
and load each bucket as it arrives."""


class _Buffer:
    def __init__(self, nbytes: int, device: str) -> None:
        self.bytes = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=device)  # touched: no later copy faults
        self.version: int | None = None
        self.writing = False
        self.readers = 0
        self.manifest: Manifest | None = None

    @property
    def free(self) -> bool:
        return self.version is None and not self.writing and not self.readers


class _StagedBuffer:
    """See StagedVersion."""

    def __init__(self, buffer: _Buffer, layout: Layout, version: int, step: int, location: str) -> None:
        self._buffer = buffer
        self._layout = layout
        self._location = location
        self.version = version
        self.step = step

    def seal(self) -> Manifest:
        host = self._buffer.bytes[: self._layout.nbytes].cpu()
        manifest = self._layout.manifest(
            version=self.version,
            step=self.step,
            transport="nccl",
            location=self._location,
            checksums=checksums(memoryview(host.numpy()), self._layout.bounds),
        )
        if self._buffer.version == self.version:
            self._buffer.manifest = manifest
        return manifest


class CollectiveSender:
    """See WeightSender. With one buffer (weights.staging=false) receivers load in place."""

    def __init__(self, settings: SenderSettings) -> None:
        self._backend_setting = settings.communicator
        self._device = settings.device
        self._num_buffers = settings.num_buffers
        self._bucket_bytes = settings.bucket_bytes
        self._location = STAGED if settings.num_buffers > 1 else IN_PLACE
        self._buffers: list[_Buffer] = []
        self._last_version = -1
        self._closed = False
        self._lock = threading.Lock()
        self._rank = Rank(device=settings.device, bucket_bytes=settings.bucket_bytes)
        self._joining: dict[str, _Joining] = {}
        self._progress: dict[str, Progress] = {}

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> _StagedBuffer | None:
        """See WeightSender. Raises ValueError where `version` is not a newer one."""
        layout = build_layout(tensors, dtype=dtype, bucket_bytes=self._bucket_bytes)
        buffer = self._take(layout.nbytes, version)
        if buffer is None:
            return None
        try:
            flatten_into(buffer.bytes, tensors, layout)
            if buffer.bytes.device.type != "cpu":
                torch.cuda.synchronize(buffer.bytes.device)  # the broadcast has a stream of its own
            buffer.version, buffer.manifest = version, None
            self._last_version = version
        finally:
            buffer.writing = False
        return _StagedBuffer(buffer, layout, version, step, self._location)

    def release(self, version: int) -> None:
        """See WeightSender."""
        with self._lock:
            for buffer in self._buffers:
                if buffer.version == version:
                    buffer.version = buffer.manifest = None

    def close(self) -> None:
        """See WeightSender. Ends what is being sent."""
        with self._lock:
            self._closed = True
            self._buffers.clear()
        self._rank.close()

    # --- the group ---------------------------------------------------------------------------------------------------

    def open_group(self, group: str, *, world_size: int, timeout_s: float, keep: Collection[str]) -> tuple[str, bytes]:
        """(back-end, unique id): begin to join as rank 0, in a thread of its own; leave the groups that are not kept."""
        backend = resolve(self._backend_setting)
        self._rank.keep((*keep, group))
        unique_id = make_unique_id(backend)
        joining = _Joining(self._rank, group, backend, unique_id, world_size, timeout_s)
        with self._lock:
            kept = {*keep, group}
            self._joining = {name: other for name, other in self._joining.items() if name in kept}
            self._progress = {name: other for name, other in self._progress.items() if name in kept}
            self._joining[group] = joining
        joining.start()
        return backend, unique_id

    def joined(self, group: str, timeout_s: float) -> None:
        """Until all ranks of the group have joined. Raises GroupBroken."""
        with self._lock:
            joining = self._joining.get(group)
        if joining is None:
            raise GroupBroken(f"the learner has not opened group {group}; it may have been restarted")
        joining.wait(timeout_s)

    def send(self, group: str, version: int, *, timeout_s: float) -> float:
        """Broadcast a staged version; seconds that it took. Raises WeightsMismatch where it is not held any more,
        GroupBroken at the deadline or where the group broke."""
        with self._lock:
            held = next((b for b in self._buffers if b.version == version and b.manifest is not None), None)
            if held is None or held.manifest is None:
                versions = sorted(b.version for b in self._buffers if b.version is not None)
                raise WeightsMismatch(f"version {version} is not staged; the learner holds {versions}")
            held.readers += 1
            manifest = held.manifest
            progress = self._progress[group] = Progress()
        started_s = time.perf_counter()
        try:
            communicator = self._rank.communicator(group)
            passage.send(communicator, manifest, held.bytes, timeout_s=timeout_s, progress=progress)
        finally:
            with self._lock:
                held.readers -= 1
        return time.perf_counter() - started_s

    def abort(self, group: str) -> int:
        """End what is under way in the group and leave it; how many buckets were sent in it last."""
        self._rank.abort(group)
        with self._lock:
            progress = self._progress.get(group)
        return 0 if progress is None else progress.num_buckets

    def _take(self, nbytes: int, version: int) -> _Buffer | None:
        """A free buffer of at least `nbytes`, marked as being written; None where all are in use."""
        with self._lock:
            if self._closed:
                raise ValueError("this weight sender is closed")
            if version <= self._last_version:
                raise ValueError(f"version must be above the last one staged ({self._last_version}), got {version}")
            free = [buffer for buffer in self._buffers if buffer.free]
            fitting = [buffer for buffer in free if buffer.bytes.numel() >= nbytes]
            if fitting:
                buffer = fitting[0]
            elif len(self._buffers) < self._num_buffers or free:
                if len(self._buffers) == self._num_buffers:
                    self._buffers.remove(free[0])
                buffer = _Buffer(nbytes, self._device)
                self._buffers.append(buffer)
            else:
                return None
            buffer.writing = True
            return buffer


class _Joining(threading.Thread):
    """Rank 0's way into one group: it ends by itself, at the deadline or by an abort."""

    def __init__(
        self, rank: Rank, group: str, backend: str, unique_id: bytes, world_size: int, timeout_s: float
    ) -> None:
        super().__init__(name="weights-join", daemon=True)
        self._rank, self._group, self._backend, self._id = rank, group, backend, unique_id
        self._world_size, self._timeout_s = world_size, timeout_s
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._rank.join(
                self._group, self._backend, self._id, rank=0, world_size=self._world_size, timeout_s=self._timeout_s
            )
        except Exception as error:  # whatever it was, it belongs to the one who waits
            self._error = error

    def wait(self, timeout_s: float) -> None:
        self.join(timeout_s)
        if self.is_alive():
            raise GroupBroken(f"rank 0 has not joined group {self._group} within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
