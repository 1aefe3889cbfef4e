"""What senders have in common that copy into a buffer of tensors: the copy, waiting to be sealed, and plain memory for
it. Called by shm.py, ipc.py, checkpoint.py and collective/sender.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.manifest import Manifest

if TYPE_CHECKING:
    from headrace.transport.weights.layout import Layout


class StagedCopy:
    """See carrier.StagedVersion. checksums: reads the copy, one for each of the layout's buckets. sealed: what else has
    to happen before anybody hears of the version."""

    def __init__(
        self,
        layout: Layout,
        *,
        version: int,
        step: int,
        transport: str,
        location: str,
        checksums: Callable[[], tuple[int, ...]],
        sealed: Callable[[Manifest], None] = lambda manifest: None,
    ) -> None:
        self._layout = layout
        self.version = version
        self.step = step
        self._transport = transport
        self._location = location
        self._checksums = checksums
        self._sealed = sealed

    def seal(self) -> Manifest:
        manifest = self._layout.manifest(
            version=self.version,
            step=self.step,
            transport=self._transport,
            location=self._location,
            checksums=self._checksums(),
        )
        self._sealed(manifest)
        return manifest


class MemoryBuffer:
    """See buffers.Buffer: this process's own memory, on the CPU or a GPU, touched once so that no later copy faults."""

    def __init__(self, nbytes: int, device: str = "cpu") -> None:
        self.capacity_bytes = nbytes
        self.bytes = torch.ones(max(nbytes, 1), dtype=torch.uint8, device=device)

    def is_there(self) -> bool:
        return True

    def remove(self) -> None:
        """It goes with the last view of it."""
