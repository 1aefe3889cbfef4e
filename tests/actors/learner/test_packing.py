"""Plans keep every sequence whole and within bounds; packed log-probs equal unpacked ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from headrace.actors.learner.packing import input_length, pack, plan_micro_batches, plan_rows
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.sequence import TrainSequence

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(LENGTHS, st.sampled_from([0, 16, 64]), st.integers(1, 200))
def test_a_plan_holds_every_sequence_once_within_its_bounds(lengths, tokens_per_row, tokens_per_micro_batch):
    plan = plan_micro_batches(lengths, tokens_per_row=tokens_per_row, tokens_per_micro_batch=tokens_per_micro_batch)
    rows = [row for batch in plan for row in batch]
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or (tokens_per_row and sum(lengths[i] for i in row) <= tokens_per_row)
    for batch in plan:
        width = max(sum(lengths[i] for i in row) for row in batch)
        assert len(batch) == 1 or len(batch) * width <= tokens_per_micro_batch


@given(LENGTHS)
def test_first_fit_leaves_at_most_one_row_half_empty(lengths):
    fills = [sum(lengths[i] for i in row) for row in plan_rows(lengths, 40)]
    assert sum(fill <= 20 for fill in fills) <= 1


def naive_logprobs(policy: Policy, sequence: TrainSequence) -> list[float]:
    """One sequence alone, the model's own logits, all positions, then pick."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.from_numpy(sequence.token_ids.astype(np.int64))[None]).logits[0]
    out = []
    for t in np.flatnonzero(sequence.loss_mask):
        row = logits[t - 1].double().numpy() / sequence.temperature
        shifted = row - row.max()
        out.append(shifted[sequence.token_ids[t]] - np.log(np.exp(shifted).sum()))
    return out


@pytest.mark.parametrize("tokens_per_row", [0, 32, 1000])
def test_packed_logprobs_equal_unpacked_ones(policy, make_sequence, tokens_per_row):
    sequences = [make_sequence(i, 6 + 3 * (i % 5), temperature=1.0 if i % 2 else 0.6) for i in range(9)]
    [rows] = plan_micro_batches(
        [input_length(s) for s in sequences], tokens_per_row=tokens_per_row, tokens_per_micro_batch=10**6
    )
    micro = pack(sequences, rows)
    temperature_N = torch.tensor([sequences[micro.members[s]].temperature for s in micro.sequence_N])
    logprobs_N = policy.token_logprobs(micro, temperature_N).detach().numpy()
    for number, member in enumerate(micro.members):
        np.testing.assert_allclose(
            logprobs_N[micro.sequence_N == number], naive_logprobs(policy, sequences[member]), atol=1e-5
        )


SHAPE = {
    **{"vocab_size": 90, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "initializer_range": 0.3},
    **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0},
}
WINDOW = 4
ARCHITECTURES = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=WINDOW),
    "qwen2": lambda: Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "gemma3": lambda: Gemma3TextConfig(
        **SHAPE, sliding_window=WINDOW, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"]
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48),
}


@pytest.mark.parametrize("tokens_per_row", [0, 60])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_no_attention_crosses_a_border_nor_leaves_a_window(name, tokens_per_row, make_sequence):
    """Packed rows longer than a model's sliding window: each layer has its own mask still."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(ARCHITECTURES[name](), dtype=torch.float32, attn_implementation="sdpa")
    policy = Policy(model.eval())
    sequences = [make_sequence(i, 4 + 4 * (i % 5)) for i in range(11)]
    [rows] = plan_micro_batches(
        [input_length(s) for s in sequences], tokens_per_row=tokens_per_row, tokens_per_micro_batch=10**6
    )
    micro = pack(sequences, rows)
    logprobs_N = policy.token_logprobs(micro, torch.ones(len(micro.sequence_N))).detach().numpy()
    for number, member in enumerate(micro.members):
        alone = naive_logprobs(policy, sequences[member])
        np.testing.assert_allclose(logprobs_N[micro.sequence_N == number], alone, atol=2e-5)


def test_an_eos_that_is_also_the_padding_is_trained():
    """cases C64: pad = eos = 0; the mask goes by length, never by value: of [5, 6, 0] the 0 is a target."""
    sequence = TrainSequence(
        token_ids=np.array([5, 6, 0], dtype=np.int32),
        loss_mask=np.array([False, True, True]),
        logprobs=np.zeros(3, dtype=np.float32),
        versions=np.zeros(3, dtype=np.int32),
        advantage=1.0,
    )
    longer = TrainSequence(
        token_ids=np.arange(1, 6, dtype=np.int32),
        loss_mask=np.array([False, False, False, True, True]),
        logprobs=np.zeros(5, dtype=np.float32),
        versions=np.zeros(5, dtype=np.int32),
        advantage=1.0,
    )
    micro = pack([sequence, longer], [(1,), (0,)])
    assert micro.input_ids_RL.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
    assert micro.targets_N.tolist() == [4, 5, 6, 0]
    assert micro.predictors_N.tolist() == [2, 3, 4, 5]


def test_a_first_token_cannot_be_trained():
    with pytest.raises(ValueError, match="nothing predicts"):
        TrainSequence(
            token_ids=np.array([5, 6], dtype=np.int32),
            loss_mask=np.array([True, True]),
            logprobs=np.zeros(2, dtype=np.float32),
            versions=np.zeros(2, dtype=np.int32),
            advantage=1.0,
        )
