"""Weights between two processes on one GPU: device buffers that the engine maps by CUDA IPC. Two NCCL ranks cannot
share a GPU, and host memory would be a detour.

The learner copies into a device buffer and goes on; the engine's workers map that buffer and load from it: the bytes
move once, on the device. Each buffer begins with a stamp, as in shm.py, which tells a reader that was too slow. A
buffer is an allocation of its own (not the caching allocator's), since an IPC handle names a whole allocation.

    location    ipc:DEVICE_UUID:HANDLE_IN_BASE64, of whoever is to open it on the same device, in another process
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from headrace.transport.weights.buffers import BufferPool
from headrace.transport.weights.carrier import SenderSettings, StagedVersion
from headrace.transport.weights.checksum import checksums, compare
from headrace.transport.weights.layout import build_layout, flatten_into, unflatten
from headrace.transport.weights.manifest import Manifest, WeightsMismatch
from headrace.transport.weights.segment import HEADER_BYTES, OVERWRITING, STAMP_BYTES, read_stamp, stamp_bytes
from headrace.transport.weights.staged import StagedCopy

if TYPE_CHECKING:
    from torch import Tensor

_PREFIX = "ipc"


def _runtime() -> Any:
    """CuPy's view of the CUDA runtime. Raises RuntimeError saying what is missing."""
    try:
        from cupy.cuda import runtime
    except ImportError as error:
        raise RuntimeError("weights.transport=ipc needs CuPy (the extra headrace[cuda])") from error
    if not torch.cuda.is_available():
        raise RuntimeError("weights.transport=ipc needs a GPU that learner and engine share; use shm on a CPU")
    return runtime


class _Memory:
    """Device memory as torch and CuPy exchange it (`__cuda_array_interface__`)."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


class _DeviceBuffer:
    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.capacity_bytes = nbytes
        self.device = device
        self._runtime = _runtime()
        with torch.cuda.device(device):
            try:
                self._pointer = self._runtime.malloc(HEADER_BYTES + max(nbytes, 1))
            except self._runtime.CUDARuntimeError as error:
                raise RuntimeError(
                    f"no {nbytes} bytes of memory on {device} to stage weights in ({error}); lower the engine's "
                    "gpu_memory_utilization, or set weights.staging=false"
                ) from error
            memory = _Memory(self._pointer, HEADER_BYTES + max(nbytes, 1))
            self._all: Tensor = torch.as_tensor(memory, device=device)
            handle: bytes = self._runtime.ipcGetMemHandle(self._pointer)
        self.location = f"{_PREFIX}:{_uuid(device)}:{base64.b64encode(handle).decode()}"

    @property
    def bytes(self) -> Tensor:
        return self._all[HEADER_BYTES:]

    def stamp(self, version: int) -> None:
        text = torch.frombuffer(bytearray(stamp_bytes(version)), dtype=torch.uint8)
        self._all[: len(text)].copy_(text)

    def is_there(self) -> bool:
        return True

    def remove(self) -> None:
        """Who has mapped it keeps the memory until it lets go."""
        if self._pointer:
            with torch.cuda.device(self.device):
                self._runtime.free(self._pointer)
            self._pointer = 0


class IpcSender:
    """The learner's end; settings.device is the GPU that both use."""

    def __init__(self, settings: SenderSettings) -> None:
        self._device = torch.device(settings.device)
        if self._device.type != "cuda":
            raise ValueError(
                f"weights.transport=ipc needs learner.device=cuda, got {settings.device}; use shm on a CPU"
            )
        self._bucket_bytes = settings.bucket_bytes
        self._pool = BufferPool(settings.num_buffers, lambda nbytes: _DeviceBuffer(self._device, nbytes))

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> StagedVersion | None:
        """See WeightSender. Returns when the copy is done: the stream that trains is the one that copies."""
        layout = build_layout(tensors, dtype=dtype, bucket_bytes=self._bucket_bytes)
        with self._pool.filling(layout.nbytes, version) as buffer, torch.cuda.device(self._device):
            if buffer is None:
                return None
            buffer.stamp(OVERWRITING)
            flatten_into(buffer.bytes, tensors, layout)
            buffer.stamp(version)
            torch.cuda.current_stream(self._device).synchronize()
        return StagedCopy(
            layout,
            version=version,
            step=step,
            transport="ipc",
            location=buffer.location,
            checksums=lambda: _device_checksums(buffer.bytes, layout.bounds),
        )

    def release(self, version: int) -> None:
        """See WeightSender."""
        self._pool.release(version)

    def close(self) -> None:
        """See WeightSender."""
        self._pool.close()


class IpcReceiver:
    """An engine's end, in a worker whose current device is the learner's."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._runtime = _runtime()
        self._pointer = 0
        device = torch.device("cuda", torch.cuda.current_device())
        prefix, uuid, handle = manifest.location.split(":", 2)
        if prefix != _PREFIX or uuid != _uuid(device):
            raise WeightsMismatch(
                f"version {manifest.version} lies on GPU {uuid}, this process uses {_uuid(device)}: ipc is for one "
                "GPU; use weights=nccl for several"
            )
        try:
            self._pointer = self._runtime.ipcOpenMemHandle(base64.b64decode(handle))
        except self._runtime.CUDARuntimeError as error:
            raise WeightsMismatch(
                f"version {manifest.version} cannot be mapped (is its learner gone? {error})"
            ) from error
        memory = _Memory(self._pointer, HEADER_BYTES + max(manifest.nbytes, 1))
        self._all: Tensor | None = torch.as_tensor(memory, device=device)

    def verify(self) -> None:
        """See WeightReceiver. The bytes visit the host bucket by bucket, beside decoding."""
        self.check_unchanged()
        bounds = [(bucket.offset, bucket.nbytes) for bucket in self._manifest.buckets]
        compare(self._manifest, _device_checksums(self._open()[HEADER_BYTES:], bounds))

    def tensors(self, *, include_tied: bool = False) -> Iterator[tuple[str, Tensor]]:
        """See WeightReceiver. Views into the learner's buffer, on the device."""
        yield from unflatten(self._manifest, self._open()[HEADER_BYTES:], include_tied=include_tied)

    def check_unchanged(self) -> None:
        """See WeightReceiver."""
        version = read_stamp(self._open()[:STAMP_BYTES].cpu().numpy().data)
        if version != self._manifest.version:
            inside = "bytes being overwritten" if version == OVERWRITING else f"version {version}"
            raise WeightsMismatch(f"the learner's buffer holds {inside}, not version {self._manifest.version}")

    def close(self) -> None:
        """See WeightReceiver. What was loaded from it has to be copied by then: the memory is unmapped."""
        if self._pointer:
            torch.cuda.synchronize()
            self._all = None
            self._runtime.ipcCloseMemHandle(self._pointer)
            self._pointer = 0

    def _open(self) -> Tensor:
        if self._all is None:
            raise ValueError(f"the receiver of version {self._manifest.version} is closed")
        return self._all


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _device_checksums(flat: Tensor, bounds: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Of each (offset, nbytes), one after the other: no more than a bucket is on the host at a time."""
    parts = ((flat[offset : offset + nbytes].cpu().numpy().data, nbytes) for offset, nbytes in bounds)
    return tuple(checksums(part, [(0, nbytes)])[0] for part, nbytes in parts)
