"""Made-up tiny models, one of each architecture: built from transformers' config with random weights, so small that a
whole table of them takes minutes, so wide that no tensor is without effect. No two dimensions that a fused weight could
be taken apart along are equal: what is split or transposed wrongly does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCAB_SIZE = 128
CONTEXT_TOKENS = 256
_SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": CONTEXT_TOKENS},
    **{"initializer_range": 0.15, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0},
}

CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SHAPE, tie_word_embeddings=False),
    "qwen2": lambda: Qwen2Config(
        **_SHAPE | {"num_attention_heads": 2, "num_key_value_heads": 1}, tie_word_embeddings=True
    ),  # whose heads are always as wide as hidden_size allows
    "qwen3": lambda: Qwen3Config(**_SHAPE, tie_word_embeddings=False),
    "gemma3": lambda: Gemma3TextConfig(
        **_SHAPE, tie_word_embeddings=True, query_pre_attn_scalar=32, sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "mistral": lambda: MistralConfig(**_SHAPE, tie_word_embeddings=False, sliding_window=None),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_SHAPE, tie_word_embeddings=False, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96,
        norm_topk_prob=True,
    ),
}  # fmt: skip


def make_model(name: str, seed: int) -> nn.Module:
    """float32, on the CPU. Norms and biases, which would all be ones and zeros, differ by the seed too."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model
