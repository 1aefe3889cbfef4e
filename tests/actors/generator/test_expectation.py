"""What an engine expects of a version, from the folder of its model alone; and that it looks before it reads a byte."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from transformers import DeepseekV3Config

from headrace.actors.generator.expectation import expected_weights
from headrace.actors.generator.staged_weights import StagedWeights
from headrace.transport.weights import Bucket, Expected, Manifest, TensorSpec, WeightsMismatch


def test_persistent_buffers_are_expected(tmp_path: Path) -> None:
    """cases E86: the router's bias of DeepSeek-V3 is trained, and no parameter."""
    DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        n_group=1, topk_group=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, v_head_dim=8, qk_nope_head_dim=8,
        first_k_dense_replace=1, max_position_embeddings=64,
    ).save_pretrained(tmp_path)  # fmt: skip
    expected = expected_weights(str(tmp_path))
    assert expected["model.layers.1.mlp.gate.e_score_correction_bias"] == Expected((4,), "float32")


def test_a_manifest_that_does_not_fit_is_refused_before_any_byte_is_read() -> None:
    """cases E83: pytorch/pytorch#91535. float32 [0 .. 5] for an int64 receiver; there is nothing at its location."""
    spec = TensorSpec("w", "float32", (6,), 0, 24)
    manifest = Manifest(1, 1, "shm", "/nowhere", 24, (spec,), (Bucket(0, 24, 0),), {})
    staged = StagedWeights()
    with pytest.raises(WeightsMismatch, match="w: dtype float32 sent, int64 expected"):
        asyncio.run(staged.stage(manifest, {"w": Expected((6,), "int64")}))
    with pytest.raises(WeightsMismatch, match="/nowhere is gone"):
        asyncio.run(staged.stage(manifest, {"w": Expected((6,), "float32")}))
