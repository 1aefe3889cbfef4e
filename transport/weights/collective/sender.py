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

from headrace.transport.weights.buffers import BufferPool
from headrace.transport.weights.carrier import SenderSettings, StagedVersion
from headrace.transport.weights.checksum import checksums
from headrace.transport.weights.collective import COLLECTIVE, HEADRACE, IN_PLACE, STAGED, VLLM, passage, vllm_native
from headrace.transport.weights.collective.communicator import GroupBroken, make_unique_id, resolve
from headrace.transport.weights.collective.rank import Rank
from headrace.transport.weights.layout import build_layout, flatten_into
from headrace.transport.weights.manifest import Manifest, WeightsMismatch
from headrace.transport.weights.parallel_copy import ParallelCopy
from headrace.transport.weights.staged import MemoryBuffer, StagedCopy

if TYPE_CHECKING:
    from torch import Tensor


class CollectiveSender:
    """See WeightSender. With one buffer (weights.staging=false) receivers load in place."""

    def __init__(self, settings: SenderSettings) -> None:
        self._communicator = settings.communicator
        self._backend = ""  # of the first group
        self._bucket_bytes = settings.bucket_bytes
        self.location = STAGED if settings.num_buffers > 1 else IN_PLACE
        self._copy = ParallelCopy()
        self._pool = BufferPool(settings.num_buffers, lambda nbytes: MemoryBuffer(nbytes, settings.device))
        self._held: dict[int, tuple[Manifest, Tensor]] = {}
        self._rank = Rank(device=settings.device, bucket_bytes=settings.bucket_bytes)
        self._joining: dict[str, _Joining] = {}
        self._lock = threading.Lock()

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> StagedVersion | None:
        """See WeightSender. Raises ValueError where `version` is not a newer one."""
        layout = build_layout(tensors, dtype=dtype, bucket_bytes=self._bucket_bytes)
        with self._pool.filling(layout.nbytes, version) as buffer:
            if buffer is None:
                return None
            flatten_into(buffer.bytes, tensors, layout, self._copy)
            if buffer.bytes.device.type != "cpu":
                torch.cuda.synchronize(buffer.bytes.device)  # the broadcast has a stream of its own
        staged = buffer.bytes

        def sealed(manifest: Manifest) -> None:
            with self._lock:
                self._held[manifest.version] = manifest, staged  # from here on it may be sent

        return StagedCopy(
            layout,
            version=version,
            step=step,
            transport=COLLECTIVE,
            location=self.location,
            checksums=lambda: checksums(staged[: layout.nbytes].cpu().numpy().data, layout.bounds),
            sealed=sealed,
        )

    def release(self, version: int) -> None:
        """See WeightSender. Where a send that was given up reads there still, what it sends fails its checksums."""
        with self._lock:
            self._held.pop(version, None)
        self._pool.release(version)

    def close(self) -> None:
        """See WeightSender. Ends what is being sent."""
        with self._lock:
            self._held.clear()
        self._rank.close()
        self._pool.close()

    # --- the group ---------------------------------------------------------------------------------------------------

    def open_group(
        self, group: str, *, world_size: int, timeout_s: float, keep: Collection[str], kind: str = HEADRACE
    ) -> tuple[str, bytes]:
        """(back-end, unique id): begin to join as rank 0, in a thread of its own; leave what is not in `keep`. Raises
        ValueError where a group of vLLM's own is asked for and there is no NCCL here."""
        self._backend = backend = self._backend or resolve(self._communicator)
        if kind == VLLM and backend != vllm_native.BACKEND:
            raise ValueError(
                f"a vLLM server of somebody else's takes weights by NCCL, and the learner has {backend!r} (no GPU, no "
                "CuPy, or weights.communicator says so); use weights=checkpoint"
            )
        self._rank.keep((*keep, group))
        unique_id = make_unique_id(backend)
        joining = _Joining(self._rank, group, backend, unique_id, world_size, timeout_s, kind)
        with self._lock:
            kept = {*keep, group}
            self._joining = {name: other for name, other in self._joining.items() if name in kept}
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
        """Broadcast a sealed version; seconds that it took. Raises WeightsMismatch where it is not held (any more),
        GroupBroken at the deadline or where the group broke."""
        with self._lock:
            if version not in self._held:
                raise WeightsMismatch(f"version {version} is not staged; the learner holds {sorted(self._held)}")
            manifest, buffer = self._held[version]
            kind = self._joining[group].kind if group in self._joining else HEADRACE
        started_s = time.perf_counter()
        with self._rank.passage(group) as (communicator, progress):
            if kind == VLLM:
                vllm_native.broadcast(
                    communicator, manifest, buffer, packed=False, timeout_s=timeout_s, progress=progress
                )
            else:
                passage.send(communicator, manifest, buffer, timeout_s=timeout_s, progress=progress)
        return time.perf_counter() - started_s

    def abort(self, group: str) -> int:
        """See Rank.abort."""
        return self._rank.abort(group)


class _Joining(threading.Thread):
    """Rank 0's way into one group: it ends by itself, at the deadline or by an abort."""

    def __init__(
        self, rank: Rank, group: str, backend: str, unique_id: bytes, world_size: int, timeout_s: float, kind: str
    ) -> None:
        super().__init__(name="weights-join", daemon=True)
        self._rank, self._group, self._backend, self._id = rank, group, backend, unique_id
        self._world_size, self._timeout_s = world_size, timeout_s
        self.kind = kind
        self._error: Exception | None = None

    def run(self) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        try:
            self._rank.join(
                self._group, self._backend, self._id, rank=0, world_size=self._world_size, timeout_s=self._timeout_s
            )
            if self.kind == VLLM:
                with self._rank.passage(self._group) as (communicator, _):
                    vllm_native.warm_up(communicator, timeout_s=deadline_s - time.monotonic())
        except Exception as error:  # whatever it was, it belongs to the one who waits
            self._error = error

    def wait(self, timeout_s: float) -> None:
        self.join(timeout_s)
        if self.is_alive():
            raise GroupBroken(f"rank 0 has not joined group {self._group} within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
