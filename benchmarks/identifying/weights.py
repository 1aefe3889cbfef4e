"""A Llama whose greedy next token is its version modulo the vocabulary, whatever the context: a token is its own proof.

The hidden state is one of VOCABULARY unit vectors; the embedding, each layer's values, outputs, up and down projections
and the head shift it (a cyclic permutation of the unit vectors) by amounts drawn for that version, and only the sum of
one version's shifts is the version: weights of which a part is older, newer, swapped or missing say something else.
Each position attends to itself alone, by the rotary distance, so that what older weights left in the key-value cache
says nothing. Called by learner.py and run.py, checked by tests/identifying/test_weights.py.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 64
"""Also the hidden size: token ↔ unit vector."""
NUM_LAYERS = 2
CONTEXT_TOKENS = 256
_GROWTH = 64.0
"""Each part's contribution to the residual stream, over all before it. So large that the length of a key hardly depends
on whether contributions fall together: a longer key of older weights would outdo a position's own."""
_NORM = VOCABULARY**0.5
"""What RMSNorm makes of a unit vector."""
_SHARPNESS = 3.0
_ROPE_BASE = 100.0
"""Small: neighbours are far apart."""
_NUM_SHIFTS = 2 + 4 * NUM_LAYERS


def token_of(version: int) -> int:
    return version % VOCABULARY


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=VOCABULARY, intermediate_size=VOCABULARY, num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2, num_key_value_heads=2, head_dim=VOCABULARY // 2, tie_word_embeddings=False,
        max_position_embeddings=CONTEXT_TOKENS, rope_parameters={"rope_type": "default", "rope_theta": _ROPE_BASE},
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip


def shifts(version: int) -> list[int]:
    """How far each part shifts; their sum is the version's token."""
    drawn = np.random.default_rng([version, VOCABULARY]).integers(0, VOCABULARY, size=_NUM_SHIFTS)
    drawn[-1] = token_of(version) - drawn[:-1].sum()
    return [int(shift) % VOCABULARY for shift in drawn]


def tensors_of(version: int) -> dict[str, torch.Tensor]:
    """Under transformers' names, float32."""
    amounts = iter(shifts(version))
    first = torch.zeros(VOCABULARY)
    first[next(amounts)] = 1.0
    tensors = {"model.embed_tokens.weight": first.repeat(VOCABULARY, 1)}
    ones = torch.ones(VOCABULARY)
    growth = 1.0
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}."
        growth *= _GROWTH
        tensors[f"{prefix}input_layernorm.weight"] = ones.clone()
        same = torch.full((VOCABULARY, VOCABULARY), _SHARPNESS)  # queries and keys are alike wherever the state is
        tensors[f"{prefix}self_attn.q_proj.weight"] = same.clone()
        tensors[f"{prefix}self_attn.k_proj.weight"] = same.clone()
        tensors[f"{prefix}self_attn.v_proj.weight"] = _shift(next(amounts)) / _NORM
        tensors[f"{prefix}self_attn.o_proj.weight"] = _shift(next(amounts)) * growth
        growth *= _GROWTH
        tensors[f"{prefix}post_attention_layernorm.weight"] = ones.clone()
        tensors[f"{prefix}mlp.gate_proj.weight"] = torch.full((VOCABULARY, VOCABULARY), 1.0)  # open, evenly
        tensors[f"{prefix}mlp.up_proj.weight"] = _shift(next(amounts)) / _NORM**2
        tensors[f"{prefix}mlp.down_proj.weight"] = _shift(next(amounts)) * growth
    tensors["model.norm.weight"] = ones.clone()
    tensors["lm_head.weight"] = _shift(next(amounts))
    return tensors


def model_of(version: int) -> LlamaForCausalLM:
    model = LlamaForCausalLM(config()).eval()
    model.load_state_dict(tensors_of(version), strict=True)
    return model


def _shift(amount: int) -> torch.Tensor:
    """Takes unit vector i to unit vector i + amount."""
    return torch.roll(torch.eye(VOCABULARY), amount, dims=0)
