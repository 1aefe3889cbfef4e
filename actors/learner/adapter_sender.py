"""How adapters leave the learner: a sender whose versions are adapters, each with the base that it goes upon.

The base travels once, through a sender of its own whose one buffer stays: a generator that comes late or again needs
it. Where the base is what the model folder holds, it does not travel at all. The publisher sees a plain WeightSender.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from headrace.transport.weights import Adapter, Manifest, SenderSettings, StagedVersion, WeightSender, make_sender

if TYPE_CHECKING:
    from torch import Tensor


class AdapterSource(Protocol):
    """What the workbench knows of its adapters. Read in `stage`, where weights may be read."""

    def base_tensors(self) -> Mapping[str, Tensor] | None:
        """The frozen weights; None where they are those of the model folder."""

    def adapter(self, base: Manifest | None) -> Adapter: ...


class AdapterSender:
    """See WeightSender. `make`: for tests."""

    def __init__(
        self,
        transport: str,
        settings: SenderSettings,
        source: AdapterSource,
        *,
        make: Callable[[str, SenderSettings], WeightSender] = make_sender,
    ) -> None:
        self._adapters = make(transport, settings)
        self._source = source
        self._transport = transport
        self._settings = settings
        self._make = make
        self._base_sender: WeightSender | None = None
        self._base: _Base | None = None

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> StagedVersion | None:
        staged = self._adapters.stage(tensors, version=version, step=step, dtype=dtype)
        if staged is None:
            return None
        if self._base is None:
            self._base = _Base(self._stage_base(version, step, dtype))
        return _StagedAdapter(staged, self._base, self._source.adapter)

    def release(self, version: int) -> None:
        self._adapters.release(version)

    def close(self) -> None:
        self._adapters.close()
        if self._base_sender is not None:
            self._base_sender.close()

    def _stage_base(self, version: int, step: int, dtype: str | None) -> StagedVersion | None:
        tensors = self._source.base_tensors()
        if tensors is None:
            return None
        folder = None if self._settings.folder is None else self._settings.folder / "base"
        run_id = f"{self._settings.run_id}-base"
        settings = replace(self._settings, run_id=run_id, num_buffers=1, folder=folder)
        self._base_sender = self._make(self._transport, settings)
        staged = self._base_sender.stage(tensors, version=version, step=step, dtype=dtype)
        assert staged is not None, "the only version of this sender finds its only buffer free"
        return staged


class _Base:
    """Sealed once, by the first version that goes upon it."""

    def __init__(self, staged: StagedVersion | None) -> None:
        self._staged = staged
        self._manifest: Manifest | None = None
        self._one = threading.Lock()

    def manifest(self) -> Manifest | None:
        with self._one:
            if self._staged is not None:
                self._manifest, self._staged = self._staged.seal(), None
            return self._manifest


class _StagedAdapter:
    """See StagedVersion."""

    def __init__(self, staged: StagedVersion, base: _Base, adapter: Callable[[Manifest | None], Adapter]) -> None:
        self._staged = staged
        self._base = base
        self._adapter = adapter

    @property
    def version(self) -> int:
        return self._staged.version

    @property
    def step(self) -> int:
        return self._staged.step

    def seal(self) -> Manifest:
        return replace(self._staged.seal(), adapter=self._adapter(self._base.manifest()))
