"""The check behind the table would see a single tensor that an update left behind, of any model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_table_run.gap import BOUND, NUM_TOKENS, Sample, draw_prompts, forward_logprobs, gap
from model_table_run.models import CONFIGS, VOCAB_SIZE, make_model
from model_table_run.table import FIRST_SEED, SECOND_SEED, nearly

from headrace.transport.weights.layout import model_tensors


def samples_of(model: torch.nn.Module, num: int = 4) -> list[Sample]:
    """As an engine with just these weights would give them, but for the tokens, which are drawn uniformly."""
    rng = np.random.default_rng(1)
    found = []
    for prompt in draw_prompts(VOCAB_SIZE)[:num]:
        tokens = tuple(int(token) for token in rng.integers(1, VOCAB_SIZE, NUM_TOKENS))
        found.append(Sample(prompt, tokens, tuple(forward_logprobs(model, prompt, tokens).astype(np.float32).tolist())))
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_shows(name: str) -> None:
    first, second = model_tensors(make_model(name, FIRST_SEED)), make_model(name, SECOND_SEED)
    samples = samples_of(second)
    assert gap(second, samples).largest < BOUND / 10
    seen: dict[str, float] = {}
    for tensor_name, tensor in model_tensors(second).items():
        kept = tensor.clone()
        tensor.copy_(first[tensor_name])
        seen[tensor_name] = gap(second, samples).largest
        tensor.copy_(kept)
    assert {tensor_name: found for tensor_name, found in seen.items() if not found > 100 * BOUND} == {}
    assert gap(second, samples).largest < BOUND / 10, "it is itself again"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_version_before_a_delta_is_another_one(name: str) -> None:
    model = make_model(name, SECOND_SEED)
    near = nearly(model)
    assert gap(near, samples_of(model)).largest > 100 * BOUND
    changed = {n: float((t != model_tensors(near)[n]).float().mean()) for n, t in model_tensors(model).items()}
    assert 0 < np.mean(list(changed.values())) < 0.05


def test_what_is_no_number_is_out_of_bound() -> None:
    model = make_model("llama", SECOND_SEED)
    (sample,) = samples_of(model, 1)
    assert not gap(model, [Sample(sample.prompt, sample.token_ids, (float("nan"),) * NUM_TOKENS)]).ok
