"""Continuous batching, step by step: rows that move, storage that grows, prompts that are shared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.actors.generator.decoder import Decoder, Sequence
from headrace.actors.generator.slot_cache import check_attention
from headrace.actors.session import Sampling


def test_rows_stay_right_when_the_cache_grows_and_rows_move(models: Any, greedy: Any, prompts: Any) -> None:
    """More sequences than rows, lengths past each growth of the storage, finishes in every order."""
    decoder = Decoder(models["first"], max_batch=5, max_length=512, max_prefill_tokens=30)
    lengths = [200, 3, 90, 1, 140, 17, 66, 5, 30, 2]
    sequences = [
        Sequence(list(prompt), Sampling(max_tokens=n, temperature=0.0))
        for prompt, n in zip(prompts, lengths, strict=False)
    ]
    for sequence in sequences:
        decoder.add(sequence)
    finished = []
    while decoder.busy:
        finished += decoder.step(version=3)
    assert set(map(id, finished)) == set(map(id, sequences))
    for sequence, prompt, n in zip(sequences, prompts, lengths, strict=False):
        assert sequence.token_ids == greedy(models["first"], prompt, n)
        assert sequence.versions == [3] * n


def test_equal_prompts_are_prefilled_once(models: Any) -> None:
    decoder = Decoder(models["first"], max_batch=16, max_length=512)
    seen = []
    hook = models["first"].model.embed_tokens.register_forward_hook(
        lambda _, __, out: seen.append(tuple(out.shape[:2]))
    )
    for seed in range(8):
        decoder.add(Sequence([5, 6, 7], Sampling(max_tokens=2, seed=seed)))
    while decoder.busy:
        decoder.step(version=1)
    hook.remove()
    assert seen == [(1, 3), (8, 1)]


def test_a_sequence_may_leave_while_it_waits_or_runs(models: Any, greedy: Any) -> None:
    decoder = Decoder(models["first"], max_batch=2, max_length=512)
    sequences = [Sequence([i + 1], Sampling(max_tokens=6, temperature=0.0)) for i in range(4)]
    for sequence in sequences:
        decoder.add(sequence)
    decoder.step(version=1)
    decoder.discard(sequences[0])
    decoder.discard(sequences[3])
    decoder.discard(sequences[3])
    while decoder.busy:
        decoder.step(version=1)
    assert [len(sequence.token_ids) for sequence in sequences] == [1, 6, 6, 0]
    for i in (1, 2):
        assert sequences[i].token_ids == greedy(models["first"], [i + 1], 6)


def test_models_that_keep_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the model has .'linear_attention'.; use vllm"):
        check_attention(SimpleNamespace(layer_types=["full_attention", "linear_attention"]), 100)
    sliding = SimpleNamespace(layer_types=["sliding_attention"], sliding_window=64)
    check_attention(sliding, 64)
    with pytest.raises(ValueError, match="max_model_len must be <= 64"):
        check_attention(sliding, 65)
