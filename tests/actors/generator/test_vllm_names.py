"""Every name of vLLM's that the adapter uses, so that a new release breaks here, by name, and not in a run."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import replace
from importlib.metadata import entry_points

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
pytest.importorskip("vllm")


def parameters(function: object) -> set[str]:
    return set(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_asynchronous_engine() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import AsyncMPClient

    assert {"prompt", "sampling_params", "request_id", "lora_request"} <= parameters(AsyncLLM.generate)
    assert {"mode", "clear_cache"} <= parameters(AsyncMPClient.pause_scheduler_async)
    assert {"method", "args"} <= parameters(AsyncLLM.collective_rpc)
    assert {"timeout"} <= parameters(AsyncLLM.shutdown)
    assert {"reset_running_requests"} <= parameters(AsyncLLM.reset_prefix_cache)
    updates = ("start_weight_update", "update_weights", "finish_weight_update", "update_weight_version")
    for name in ("resume_generation", "errored", *updates):
        assert hasattr(AsyncLLM, name), name


def test_arguments_and_outputs() -> None:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.config import WeightTransferConfig
    from vllm.outputs import CompletionOutput
    from vllm.sampling_params import RequestOutputKind

    from headrace.actors.generator.vllm_engine import VllmEngine

    given = set(VllmEngine(model_path="m")._arguments) | {"max_model_len", "weight_transfer_config"}
    assert given <= {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert RequestOutputKind.FINAL_ONLY
    assert "backend" in parameters(WeightTransferConfig)
    assert {"logprobs", "output_kind", "detokenize", "skip_reading_prefix_cache"} <= parameters(SamplingParams)
    fields = {field.name for field in dataclasses.fields(CompletionOutput)}
    assert {"token_ids", "logprobs", "weight_versions", "finish_reason"} <= fields


def test_adapters() -> None:
    from typing import get_args

    from vllm import AsyncEngineArgs
    from vllm.config.lora import MaxLoRARanks
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
    from vllm.lora.request import LoRARequest

    from headrace.actors.generator.vllm_lora import _RANKS, VllmLora

    assert get_args(MaxLoRARanks) == _RANKS
    assert set(VllmLora(8).arguments(["m.up"])) <= {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert VllmLora(8).request() == LoRARequest("headrace", 1, "in-place")
    assert {"device", "dtype", "weights_mapper"} <= parameters(LoRAModel.from_lora_tensors)
    assert {"r", "lora_alpha", "target_modules"} <= {field.name for field in dataclasses.fields(PEFTHelper)}
    for name in ("create_dummy_lora", "add_adapter", "remove_adapter", "activate_adapter"):
        assert hasattr(LoRAModelManager, name), name
    ours = {"y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices"}
    assert ours <= parameters(PunicaWrapperCPU.add_lora_linear)


def test_the_plug_in_is_found_and_registers_once() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from headrace.actors.generator.vllm_weights import BACKEND, register

    assert "headrace.actors.generator.vllm_weights:register" in {
        point.value for point in entry_points(group="vllm.general_plugins")
    }
    register()
    register()
    from headrace.actors.generator.vllm_transfer import StagedWeightTransfer

    assert WeightTransferEngineFactory._registry[BACKEND]() is StagedWeightTransfer


def test_what_is_packed_again_after_a_load() -> None:
    """What vllm_repack.py relies on; that it has an effect is shown by tests/model_table."""
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    assert "self.moe_kernel" in inspect.getsource(FusedMoEMethodBase.__init__)
    assert "self.moe_kernel is not None" in inspect.getsource(UnquantizedFusedMoEMethod._setup_kernel)
    assert {"layer"} <= parameters(UnquantizedEmbeddingMethod.process_weights_after_loading)
    assert hasattr(ParallelLMHead, "tie_weights")


def test_a_manifest_survives_the_way_to_the_worker() -> None:
    from headrace.actors.generator.vllm_transfer import StagedUpdate, manifest_from_dict, manifest_to_dict
    from headrace.transport.weights import Adapter, Bucket, Manifest, TensorSpec

    spec = TensorSpec("w", "bfloat16", (2, 3), 0, 12)
    manifest = Manifest(3, 30, "shm", "somewhere", 12, (spec,), (Bucket(0, 12, 2**64 - 1),), {"head": "w"})
    assert manifest_from_dict(StagedUpdate(manifest_to_dict(manifest)).manifest) == manifest
    for base in (None, manifest):
        upon = replace(manifest, version=4, adapter=Adapter(8, 16.0, ("model.up_proj",), base))
        assert manifest_from_dict(json.loads(json.dumps(manifest_to_dict(upon)))) == upon


def test_the_servers_routes() -> None:
    """What vllm_server_client.py calls, and what it sends and reads there."""
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
    from vllm.entrypoints.rl.online.api_router import router as rl
    from vllm.entrypoints.scale_out.token_in_token_out.api_router import router as tokens
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest, GenerateTokensChoice
    from vllm.entrypoints.serve.dev.cache.api_router import router as cache
    from vllm.entrypoints.serve.dev.rpc.api_router import router as rpc
    from vllm.entrypoints.serve.dev.server_info.api_router import router as info
    from vllm.v1.worker.gpu_worker import Worker

    routes = {route.path for router in (rl, tokens, cache, rpc, info) for route in router.routes}
    assert routes >= {
        *("/pause", "/resume", "/weight_info", "/update_weight_version", "/get_world_size"),
        *("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"),
        *("/inference/v1/generate", "/collective_rpc", "/server_info", "/reset_prefix_cache"),
    }
    assert {"token_ids", "sampling_params", "cache_salt"} <= set(GenerateRequest.model_fields)
    assert {"token_ids", "logprobs", "weight_versions", "finish_reason"} <= set(GenerateTokensChoice.model_fields)
    assert hasattr(Worker, "reload_weights")
    assert hasattr(Worker, "get_model_inspection")
    assert "enable_scale_out" in {field.name for field in dataclasses.fields(FrontendArgs)}
