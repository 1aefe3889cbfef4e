"""Weights that say their version: whatever the context, whatever older weights left in the cache, and not in part."""

from __future__ import annotations

import random

import pytest
import torch
from identifying.weights import CONTEXT_TOKENS, VOCABULARY, config, model_of, shifts, tensors_of, token_of
from transformers import LlamaForCausalLM

torch.set_num_threads(1)

LEAST_MARGIN = 5.0
"""between the logits of the version's token and of any other: far beyond rounding"""


def margin(logits: torch.Tensor, version: int) -> float:
    """The least lead of the version's token over all others; negative where another one wins."""
    own = logits[..., token_of(version)]
    others = logits.clone()
    others[..., token_of(version)] = -torch.inf
    return float((own - others.amax(-1)).min())


@pytest.mark.parametrize("version", [0, 1, 63, 64, 1000])
def test_the_next_token_is_the_version_in_any_context(version: int) -> None:
    torch.manual_seed(version)
    with torch.no_grad():
        logits = model_of(version)(torch.randint(0, VOCABULARY, (2, CONTEXT_TOKENS))).logits
    assert margin(logits, version) > LEAST_MARGIN


def test_what_older_weights_left_in_the_cache_says_nothing() -> None:
    """Four versions, one after the other, upon each other's keys and values."""
    drawn = random.Random(0)
    models = {version: model_of(version) for version in range(48)}
    torch.manual_seed(0)
    for trial in range(40):
        start = drawn.randrange(45)
        versions = range(start, start + 4) if trial % 2 else sorted(drawn.sample(range(48), 4))
        past = None
        for version in versions:
            tokens = torch.randint(0, VOCABULARY, (1, drawn.choice([1, 1, 2, 5, 40])))
            with torch.no_grad():
                out = models[version](tokens, past_key_values=past, use_cache=True)
            past = out.past_key_values
            assert margin(out.logits, version) > LEAST_MARGIN, list(versions)


def test_one_part_of_another_version_says_something_else() -> None:
    """Where its shift differs; shifts of two versions agree by chance once in 64."""
    old, new = 7, 8
    mixture = LlamaForCausalLM(config()).eval()
    tokens = torch.arange(5)[None]
    found = 0
    for name, tensor in tensors_of(old).items():
        if torch.equal(tensor, tensors_of(new)[name]):
            continue
        mixture.load_state_dict({**tensors_of(new), name: tensor})
        with torch.no_grad():
            said = set(mixture(tokens).logits.argmax(-1).flatten().tolist())
        assert token_of(new) not in said, name
        found += 1
    parts = [one != other for one, other in zip(shifts(old), shifts(new), strict=True)]
    assert found == sum(parts) >= 8


def test_shifts_add_up_to_the_version() -> None:
    for version in range(200):
        assert sum(shifts(version)) % VOCABULARY == version % VOCABULARY
