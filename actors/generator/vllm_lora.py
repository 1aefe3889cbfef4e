"""vLLM with adapters, the engine's side: what it is started with, and how a version's adapter comes into service.

One adapter, under one id for ever, that every request names: its factors change below the requests in flight, which go
on with the new ones. Before the first version it is zero, which is the base. The worker's side: vllm_lora_worker.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.actors.generator.adapter import AdapterRefused
from headrace.transport.weights import Manifest, WeightsMismatch

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

ADAPTER_ID = 1
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM holds memory for; a smaller adapter fits."""
_WORKER = "headrace.actors.generator.vllm_lora_worker.LoraWorker"


class VllmLora:
    """rank: of the adapters that may come. Raises ValueError beyond what vLLM can hold."""

    def __init__(self, rank: int) -> None:
        if not 1 <= rank <= _RANKS[-1]:
            raise ValueError(f"generator.engine.lora_rank must be 1 to {_RANKS[-1]} with vLLM, or null, got {rank}")
        self._rank = rank

    def arguments(self, linear_layers: Sequence[str]) -> dict[str, Any]:
        """Of AsyncEngineArgs. Without a list vLLM also adapts embeddings and head, which costs time for nothing."""
        return {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": next(rank for rank in _RANKS if rank >= self._rank),
            "lora_target_modules": sorted({name.rpartition(".")[2] for name in linear_layers}),
            "worker_extension_cls": _WORKER,
        }

    def request(self) -> LoRARequest:
        """What every request is given. vLLM wants a path and never reads it, for the adapter is there."""
        from vllm.lora.request import LoRARequest

        return LoRARequest("headrace", ADAPTER_ID, "in-place")

    def check(self, manifest: Manifest) -> None:
        """Raises WeightsMismatch for an adapter of a higher rank than this engine was started for."""
        if manifest.adapter is not None and manifest.adapter.rank > self._rank:
            raise WeightsMismatch(
                f"version {manifest.version} is an adapter of rank {manifest.adapter.rank}, and this engine was "
                f"started for at most {self._rank} (generator.engine.lora_rank)"
            )

    async def prepare(self, engine: AsyncLLM, manifest: Manifest | None) -> None:
        """Have every worker read and check an adapter, None for one of zeros. Raises AdapterRefused."""
        from headrace.actors.generator.vllm_transfer import manifest_to_dict

        values = None if manifest is None or manifest.adapter is None else manifest_to_dict(manifest)
        try:
            await engine.collective_rpc("headrace_prepare_adapter", args=(values,))
        except Exception as error:  # vLLM passes a worker's error on as a bare Exception
            raise AdapterRefused(str(error)) from error

    async def swap(self, engine: AsyncLLM) -> None:
        """Put what was prepared into service. Runs while the engine is paused; nothing is left that can be refused."""
        await engine.collective_rpc("headrace_swap_adapter")


def check_no_adapter(manifest: Manifest) -> None:
    """Raises WeightsMismatch for an adapter: an engine without `lora_rank` has no place for one."""
    if manifest.adapter is not None:
        raise WeightsMismatch(
            f"version {manifest.version} is an adapter, and this engine was started without adapters; set "
            f"generator.engine.lora_rank={manifest.adapter.rank} (and the evaluator's)"
        )
