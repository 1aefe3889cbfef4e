"""Weights for other hosts, at the learner: staged in shared memory as `shm` does, under a manifest that says on which
node they lie. What becomes of them from there on: nodes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.transport.weights.carrier import SenderSettings, StagedVersion
from headrace.transport.weights.manifest import Manifest
from headrace.transport.weights.nodes import STREAM
from headrace.transport.weights.segment import DIRECTORY
from headrace.transport.weights.shm import ShmWriter

if TYPE_CHECKING:
    from torch import Tensor


class StreamWriter:
    """The learner's end. See ShmWriter."""

    def __init__(self, settings: SenderSettings, *, directory: Path = DIRECTORY) -> None:
        self._writer = ShmWriter(settings, directory=directory)
        self._node = settings.node

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> StagedVersion | None:
        """See WeightSender."""
        staged = self._writer.stage(tensors, version=version, step=step, dtype=dtype)
        return None if staged is None else _StagedOnNode(staged, self._node)

    def release(self, version: int) -> None:
        """See WeightSender."""
        self._writer.release(version)

    def close(self) -> None:
        """See WeightSender."""
        self._writer.close()


class _StagedOnNode:
    """See StagedVersion."""

    def __init__(self, staged: StagedVersion, node: str) -> None:
        self._staged = staged
        self._node = node
        self.version = staged.version
        self.step = staged.step

    def seal(self) -> Manifest:
        manifest = self._staged.seal()
        return replace(manifest, transport=STREAM, location=f"{self._node}:{manifest.location}")
