"""Inside a vLLM worker: load one staged version into the model. Runs only while the engine is paused.

On the CPU vLLM prepacks linear weights, so that writing into parameters changes nothing: every load goes through
vLLM's layerwise reload. Between its start and its end the model holds meta tensors and must not be stepped.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from headrace.actors.generator.vllm_group_worker import rank_of_this_worker
from headrace.actors.generator.vllm_lora_worker import cover, uncover
from headrace.actors.generator.vllm_repack import Repack
from headrace.transport.weights import Adapter, Bucket, Manifest, TensorSpec, open_weights
from headrace.transport.weights.collective import COLLECTIVE

_LAYERWISE_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


@dataclass
class StagedInit(WeightTransferInitInfo):  # type: ignore[misc]  # vllm is untyped here
    """Nothing to agree on beforehand: the manifest says where the bytes are."""


@dataclass
class StagedUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """`manifest`: a Manifest as plain values. It was verified before the pause, unless it is broadcast now, in
    `group`: then each bucket is verified before it is loaded."""

    manifest: dict[str, Any]
    group: str = ""
    timeout_s: float = 0.0


def manifest_to_dict(manifest: Manifest) -> dict[str, Any]:
    """Plain values that vLLM's own messages carry to its workers."""
    return asdict(replace(manifest, probe=None))  # which is no business of the workers


def manifest_from_dict(values: dict[str, Any]) -> Manifest:
    adapter = values["adapter"]
    if adapter is not None:
        base = None if adapter["base"] is None else manifest_from_dict(adapter["base"])
        adapter = Adapter(**{**adapter, "modules": tuple(adapter["modules"]), "base": base})
    tensors = tuple(TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in values["tensors"])
    buckets = tuple(Bucket(**bucket) for bucket in values["buckets"])
    plain = {"tensors": tensors, "buckets": buckets, "tied": dict(values["tied"]), "adapter": adapter}
    return Manifest(**{**values, **plain})


class StagedWeightTransfer(WeightTransferEngine[StagedInit, StagedUpdate]):  # type: ignore[misc]
    init_info_cls = StagedInit
    update_info_cls = StagedUpdate

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._repack: Repack | None = None
        # At each update it warns of layers that have buffers and no weights, such as rotary embeddings, which keep what
        # they have. That every weight is there was checked by name before.
        logging.getLogger(_LAYERWISE_LOGGER).setLevel(logging.ERROR)

    def init_transfer_engine(self, init_info: StagedInit) -> None:
        """Nothing to open before the first version."""

    def start_weight_update(self) -> None:
        uncover(self.model)
        self._repack = Repack(self.model) if self.device.type == "cpu" else None
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Overrides the base, which synchronises an accelerator that a CPU build does not have."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: StagedUpdate) -> None:
        """Tied names are left out: vLLM ties them itself. At the end: did the bytes stay ours meanwhile? Where anything
        fails the model is a mixture, but whole, so that another load can make it one version again."""
        try:
            self._load(manifest_from_dict(update_info.manifest), update_info)
        except BaseException:
            self._abandon()
            raise

    def _load(self, manifest: Manifest, update_info: StagedUpdate) -> None:
        place = rank_of_this_worker(str(self.device))
        if update_info.group:
            arriving = place.receiver.arriving(update_info.group, manifest, timeout_s=update_info.timeout_s)
            self.model.load_weights(arriving)
            return
        near = manifest.transport == COLLECTIVE or place.holds(manifest.version)
        staged = place.take(manifest.version) if near else open_weights(manifest)
        self.model.load_weights(staged.tensors())
        staged.check_unchanged()
        staged.close()

    def finish_weight_update(self) -> None:
        self._end_reload()

    def _abandon(self) -> None:
        """End a reload that failed half way: what was buffered is forgotten (it would be counted as part of the next
        load), and layers that are still on the meta device get their tensors back."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.load_numel = 0
                info.loaded_weights.clear()
        self._end_reload()

    def _end_reload(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self._repack is not None:
            self._repack.finish()
        cover(self.model)

    def shutdown(self) -> None:
        """Nothing is held between versions."""
