"""How weights travel, whatever the means: a sender that stages, a receiver that verifies and reads; chosen by name.

    sender = make_sender("shm", run_id=run_id)                  # learner
    manifest = sender.stage(tensors, version=7, step=70)        # None: no buffer is free, skip this publication
    …                                                           # the manifest travels by message
    staged = open_weights(manifest)                             # engine
    staged.verify(); model.load(staged.tensors()); staged.check_unchanged(); staged.close()
    …
    sender.release(7)                                           # learner, once nobody reads it

A further means is a class with these methods and a line in the tables below.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from headrace.transport.weights.manifest import Manifest, WeightsMismatch

if TYPE_CHECKING:
    from torch import Tensor

SENDERS = {"shm": "headrace.transport.weights.shm:ShmWriter"}
RECEIVERS = {"shm": "headrace.transport.weights.shm:ShmReader"}


class WeightSender(Protocol):
    """Constructed as cls(run_id=…, num_buffers=…, bucket_bytes=…). Thread-safe: stage may run beside release."""

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> Manifest | None:
        """Copy into a free buffer and checksum. Returns None, at once, where no buffer is free: latest only,
        nothing queues. `dtype` converts floating-point tensors on the way."""

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


def make_sender(transport: str, *, run_id: str, num_buffers: int = 2, bucket_bytes: int = 64 << 20) -> WeightSender:
    """The sender of that name. Raises ValueError naming what there is."""
    cls = _lookup(SENDERS, transport)
    sender: WeightSender = cls(run_id=run_id, num_buffers=num_buffers, bucket_bytes=bucket_bytes)
    return sender


def open_weights(manifest: Manifest) -> WeightReceiver:
    """The receiver for a manifest's transport. Raises WeightsMismatch where the bytes are not there."""
    cls = _lookup(RECEIVERS, manifest.transport)
    receiver: WeightReceiver = cls(manifest)
    return receiver


def _lookup(table: dict[str, str], transport: str) -> type:
    if transport not in table:
        raise ValueError(f"weights.transport {transport!r} is unknown; there are {', '.join(sorted(table))}")
    module, _, name = table[transport].partition(":")
    cls: type = getattr(importlib.import_module(module), name)
    return cls


__all__ = ["RECEIVERS", "SENDERS", "WeightReceiver", "WeightSender", "WeightsMismatch", "make_sender", "open_weights"]
