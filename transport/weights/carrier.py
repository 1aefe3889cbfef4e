"""How weights travel, whatever the means: a sender that stages, a receiver that verifies and reads; chosen by name.

    sender = make_sender("shm", SenderSettings(run_id=run_id))  # learner
    staged = sender.stage(tensors, version=7, step=70)          # between two steps; None: no buffer free, skip it
    manifest = staged.seal()                                    # in a thread: the learner trains on
    …                                                           # the manifest travels by message
    near = open_weights(manifest)                               # engine
    near.verify(); model.load(near.tensors()); near.check_unchanged(); near.close()
    …
    sender.release(7)                                           # learner, once nobody reads it

A further means is a class with these methods and a line in the tables below.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.transport.weights.manifest import Manifest, WeightsMismatch, check_layout

if TYPE_CHECKING:
    from torch import Tensor

SENDERS = {
    "shm": "headrace.transport.weights.shm:ShmWriter",
    "stream": "headrace.transport.weights.stream:StreamWriter",
    "checkpoint": "headrace.transport.weights.checkpoint:CheckpointSender",
    "ipc": "headrace.transport.weights.ipc:IpcSender",
    "nccl": "headrace.transport.weights.collective.sender:CollectiveSender",
}
RECEIVERS = {
    "shm": "headrace.transport.weights.shm:ShmReader",
    "checkpoint": "headrace.transport.weights.checkpoint:CheckpointReceiver",
    "ipc": "headrace.transport.weights.ipc:IpcReceiver",
}
ALIGNMENT_BYTES = 64
"""of each tensor in the flat buffer"""
MAX_BUCKET_BYTES = 16 << 30
"""a message, and two of them are in memory at a time"""
MAX_BUFFERS = 64
"""each as large as the model"""
ON_DEVICE = frozenset({"ipc"})
"""Transports that only a process on the GPU can open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """What the learner knows, of which each means takes what it needs.

    run_id: names what the run keeps outside its folder. num_buffers: versions that may be staged at once.
    bucket_bytes: of one checksum, one message, one broadcast. folder: where what lies on disk may lie. model_folder:
    config and tokenizer of the model, for what other programs load. device: where the tensors are ("cpu", "cuda:0").
    communicator: of a collective broadcast ("auto", "cupy", "memory"). node: where the sender runs."""

    run_id: str
    num_buffers: int = 2
    bucket_bytes: int = 64 << 20
    folder: Path | None = None
    model_folder: Path | None = None
    device: str = "cpu"
    communicator: str = "auto"
    node: str = ""

    def __post_init__(self) -> None:
        check_num_buffers("weights.num_buffers", self.num_buffers, least=1)
        check_bucket_bytes("weights.bucket_bytes", self.bucket_bytes)


def check_bucket_bytes(name: str, value: int) -> None:
    """Raise ValueError where buckets of that size cannot be made."""
    if not isinstance(value, int) or not ALIGNMENT_BYTES <= value <= MAX_BUCKET_BYTES:
        raise ValueError(f"{name} must be an integer from {ALIGNMENT_BYTES} to {MAX_BUCKET_BYTES}, got {value!r}")


def check_num_buffers(name: str, value: int, *, least: int) -> None:
    """Raise ValueError where that is no number of buffers, each as large as the model."""
    if not isinstance(value, int) or not least <= value <= MAX_BUFFERS:
        raise ValueError(
            f"{name} must be an integer from {least} to {MAX_BUFFERS}, got {value!r}; 2 let one be filled while "
            "another is read"
        )


class StagedVersion(Protocol):
    """A version whose bytes are a copy: what they were copied from may change."""

    @property
    def version(self) -> int: ...

    @property
    def step(self) -> int: ...

    def seal(self) -> Manifest:
        """Checksum the copy, and whatever else takes time. Thread-safe beside the sender's methods; once."""


class WeightSender(Protocol):
    """Constructed as cls(settings). Thread-safe: stage may run beside seal and release."""

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> StagedVersion | None:
        """Copy into a free buffer: all that the learner waits for. Returns None, at once, where no buffer is free:
        latest only, nothing queues. `dtype` converts floating-point tensors on the way."""

    def release(self, version: int) -> None:
        """Nobody reads this version any more: its buffer may be overwritten. Unknown versions are ignored."""

    def close(self) -> None:
        """Remove what this sender made. Idempotent."""


class WeightReceiver(Protocol):
    """One version, brought near. Constructed as cls(manifest); raises WeightsMismatch where it is gone or short."""

    def verify(self) -> None:
        """Check every byte. Raises WeightsMismatch."""

    def tensors(self, *, include_tied: bool = False) -> Iterator[tuple[str, Tensor]]:
        """(name, view): valid until close; copy what is kept."""

    def check_unchanged(self) -> None:
        """To be called after loading and before serving: raises WeightsMismatch where the sender has meanwhile
        overwritten the buffer (this receiver was taken for gone)."""

    def close(self) -> None:
        """Let go of the bytes. Idempotent."""


def make_sender(transport: str, settings: SenderSettings) -> WeightSender:
    """The sender of that name. Raises ValueError naming what there is."""
    cls = _lookup(SENDERS, transport)
    sender: WeightSender = cls(settings)
    return sender


def open_weights(manifest: Manifest) -> WeightReceiver:
    """The receiver for a manifest's transport. Raises WeightsMismatch where the bytes are not there, or the manifest
    contradicts itself."""
    check_layout(manifest)
    cls = _lookup(RECEIVERS, manifest.transport)
    receiver: WeightReceiver = cls(manifest)
    return receiver


def _lookup(table: dict[str, str], transport: str) -> type:
    if transport not in table:
        raise ValueError(f"weights.transport {transport!r} is unknown; there are {', '.join(sorted(table))}")
    module, _, name = table[transport].partition(":")
    cls: type = getattr(importlib.import_module(module), name)
    return cls


__all__ = [
    "ON_DEVICE",
    "RECEIVERS",
    "SENDERS",
    "SenderSettings",
    "StagedVersion",
    "WeightReceiver",
    "WeightSender",
    "WeightsMismatch",
    "make_sender",
    "open_weights",
]
