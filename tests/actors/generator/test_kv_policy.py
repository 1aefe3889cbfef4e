"""What older weights' keys and values do to later tokens, by log-probs: against a plain forward of the new weights, a
fresh request of the same engine, and transformers with the old weights' past. For the torch engine and for vLLM."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.generator.kv_policy import KvPolicy
from headrace.actors.messages import Completion

SALT = KvPolicy("keep", "salt")
RECOMPUTE = KvPolicy("recompute", "salt")
BOUND = 1e-4
FAR = 1e-2
"""More than rounding: the old weights' share is seen."""

VLLM = pytest.param("vllm", marks=[pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)])


def make(name: str, model_path: str, make_bench: Any) -> Any:
    if name == "torch":
        from headrace.actors.generator.torch_engine import TorchEngine

        return make_bench(TorchEngine(model_path=model_path, max_batch=24, max_prefill_tokens=700))
    pytest.importorskip("vllm")
    from headrace.actors.generator.vllm_engine import VllmEngine

    return make_bench(VllmEngine(model_path=model_path, dtype="float32", max_num_seqs=24, num_threads=1))


@pytest.fixture(scope="module", params=["torch", VLLM])
def bench(request: pytest.FixtureRequest, model_path: str, make_bench: Any) -> Any:
    """One engine for all policies: only the adapter on this side of vLLM's processes knows them."""
    return make(request.param, model_path, make_bench)


@pytest.fixture
def with_cache(bench: Any) -> Any:
    """The engine, where it caches prefixes."""
    if type(bench.engine).__name__ == "TorchEngine":
        pytest.skip("the torch engine caches no prefixes")
    return bench


_drawn = itertools.count()


def new_prompt(num_tokens: int) -> list[int]:
    """One that no cache has seen."""
    generator = np.random.default_rng([7, next(_drawn)])
    return [int(token) for token in generator.integers(1, 128, size=num_tokens)]


def upon_old_keys(old: Any, new: Any, tokens: list[int], num_old: int, first: int) -> np.ndarray:
    """Log-probs of tokens[first:] by `new`, where the keys and values of tokens[:num_old] are those of `old`."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        past = old(ids[:, :num_old], use_cache=True).past_key_values
        logits = new(ids[:, num_old:], past_key_values=past).logits[0].double()
    logprobs = logits.log_softmax(-1)
    return np.asarray([float(logprobs[i - 1 - num_old, tokens[i]]) for i in range(first, len(tokens))])


async def continued(bench: Any, prompt: list[int], max_tokens: int, **options: Any) -> Completion:
    """A request that may use what others left in the cache."""
    request = replace(bench.request(prompt, max_tokens, **options), fresh=False)
    completion: Completion = await bench.engine.generate(request)
    return completion


def updated_in_flight(bench: Any, old: Any, new: Any, prompts: list[list[int]], **options: Any) -> list[Any]:
    """(completion, tokens of the old version) of 300-token requests into the midst of which an update fell."""

    async def run(delay_s: float) -> Any:
        running = [
            asyncio.ensure_future(continued(bench, prompt, 300, seed=seed, **options))
            for seed, prompt in enumerate(prompts)
        ]
        await asyncio.sleep(delay_s)
        await bench.update(new)
        return await asyncio.gather(*running)

    for attempt in range(12):
        bench.serve(old)
        before = bench.engine.version
        completions = bench.run(run(0.03 * 1.6**attempt))
        boundaries = [int((completion.versions == before).sum()) for completion in completions]
        if all(20 < boundary < 280 for boundary in boundaries):
            for completion, boundary in zip(completions, boundaries, strict=True):
                assert completion.finish_reason == "length"
                assert completion.versions.tolist() == [before] * boundary + [before + 1] * (300 - boundary)
            return list(zip(completions, boundaries, strict=True))
    pytest.fail("no update fell into the requests")


def policy(bench: Any, wanted: KvPolicy) -> None:
    bench.engine._policy = wanted


def test_kept_keys_are_those_of_the_old_weights(bench: Any, models: Any, forward_logprobs: Any) -> None:
    policy(bench, SALT)
    prompts = [new_prompt(n) for n in (3, 40, 170)]
    for prompt, (completion, boundary) in zip(
        prompts, updated_in_flight(bench, models["first"], models["second"], prompts), strict=True
    ):
        tokens = prompt + completion.token_ids.tolist()
        first_new = len(prompt) + boundary
        expected = upon_old_keys(models["first"], models["second"], tokens, first_new - 1, first_new)
        later = completion.logprobs[boundary:]
        assert np.abs(later - expected).max() <= BOUND
        by_new_alone = forward_logprobs(models["second"], prompt, completion.token_ids, 1.0)[boundary:]
        assert np.abs(later - by_new_alone).max() > FAR


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recomputed_keys_are_those_of_the_new_weights(
    bench: Any, models: Any, forward_logprobs: Any, temperature: float
) -> None:
    """Sampled tokens, their log-probs and versions stay; what follows is what a fresh request gets."""
    policy(bench, RECOMPUTE)
    prompts = [new_prompt(n) for n in (3, 40, 170, 3, 90, 150)]
    runs = updated_in_flight(bench, models["first"], models["second"], prompts, temperature=temperature)
    for prompt, (completion, boundary) in zip(prompts, runs, strict=True):
        for name, part in (("first", slice(0, boundary)), ("second", slice(boundary, 300))):
            expected = forward_logprobs(models[name], prompt, completion.token_ids, temperature)
            assert np.abs(completion.logprobs[part] - expected[part]).max() <= BOUND, name
        if temperature == 0.0:
            prefix = prompt + completion.token_ids[:boundary].tolist()
            fresh = bench.generate(prefix, 300 - boundary, temperature=0.0)
            assert fresh.token_ids.tolist() == completion.token_ids[boundary:].tolist()
            assert np.abs(fresh.logprobs - completion.logprobs[boundary:]).max() <= BOUND


def test_recomputing_by_equal_weights_changes_nothing(bench: Any, models: Any) -> None:
    """Seeds go on where they were: the tokens are those of a run without an update."""
    policy(bench, RECOMPUTE)
    prompts = [new_prompt(n) for n in (3, 40, 170, 3, 90)]
    runs = updated_in_flight(bench, models["first"], models["first"], prompts)
    for seed, (prompt, (completion, _)) in enumerate(zip(prompts, runs, strict=True)):
        alone = bench.generate(prompt, 300, seed=seed)
        assert completion.token_ids.tolist() == alone.token_ids.tolist()
        assert np.abs(completion.logprobs - alone.logprobs).max() <= BOUND


@pytest.mark.parametrize("wanted", [SALT, RECOMPUTE], ids=["salt", "recompute"])
def test_no_prefix_is_shared_across_an_update(bench: Any, models: Any, forward_logprobs: Any, wanted: KvPolicy) -> None:
    policy(bench, wanted)
    prompt = new_prompt(300)
    bench.serve(models["first"])
    bench.run(continued(bench, prompt, 8, seed=1))
    bench.serve(models["second"])
    later = bench.run(continued(bench, prompt, 8, seed=1))
    assert np.abs(later.logprobs - forward_logprobs(models["second"], prompt, later.token_ids, 1.0)).max() <= BOUND


def test_a_request_that_comes_during_an_update_belongs_to_the_new_version(
    with_cache: Any, models: Any, forward_logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = with_cache
    policy(bench, SALT)
    prompt = new_prompt(300)
    bench.serve(models["first"])
    bench.run(continued(bench, prompt, 8, seed=1))

    load = bench.engine._load
    asked: list[asyncio.Task[Completion]] = []

    async def ask_and_load(*arguments: Any) -> None:
        asked.append(asyncio.ensure_future(continued(bench, prompt, 8, seed=1)))
        await load(*arguments)

    async def ask_meanwhile() -> Completion:
        await bench.update(models["second"])
        return await asked[0]

    monkeypatch.setattr(bench.engine, "_load", ask_and_load)
    later = bench.run(ask_meanwhile())
    assert set(later.versions.tolist()) == {bench.version}
    assert np.abs(later.logprobs - forward_logprobs(models["second"], prompt, later.token_ids, 1.0)).max() <= BOUND


def test_a_kept_prefix_is_shared_by_so_many_versions(with_cache: Any, models: Any, forward_logprobs: Any) -> None:
    bench = with_cache
    policy(bench, KvPolicy("keep", "keep", 2))
    prompt = new_prompt(300)
    bench.serve(models["first"])
    if bench.version % 2:
        bench.serve(models["first"])
    bench.run(continued(bench, prompt, 8, seed=1))

    bench.serve(models["second"])
    shared = bench.run(continued(bench, prompt, 8, seed=1))
    block_tokens = bench.engine._engine.vllm_config.cache_config.block_size
    num_old = (len(prompt) - 1) // block_tokens * block_tokens
    assert num_old > 0
    tokens = prompt + shared.token_ids.tolist()
    expected = upon_old_keys(models["first"], models["second"], tokens, num_old, len(prompt))
    assert np.abs(shared.logprobs - expected).max() <= BOUND
    by_new_alone = forward_logprobs(models["second"], prompt, shared.token_ids, 1.0)
    assert np.abs(shared.logprobs - by_new_alone).max() > FAR

    bench.serve(models["second"])
    apart = bench.run(continued(bench, prompt, 8, seed=1))
    assert np.abs(apart.logprobs - forward_logprobs(models["second"], prompt, apart.token_ids, 1.0)).max() <= BOUND


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv": "drop"}, "engine.kv must be keep or recompute, got 'drop'"),
        ({"prefix_cache": "never"}, "engine.prefix_cache must be keep or salt, got 'never'"),
        ({"prefix_cache_max_versions": 0}, "prefix_cache_max_versions must be >= 1, got 0; null is for ever"),
        ({"kv": "recompute"}, "set weights.prefix_cache=salt, or weights.kv=keep"),
    ],
)
def test_settings_are_checked_at_construction(options: dict[str, Any], message: str) -> None:
    from headrace.actors.generator.vllm_engine import VllmEngine

    with pytest.raises(ValueError, match=message):
        VllmEngine(model_path="anywhere", **options)


def test_the_torch_engine_checks_its_own() -> None:
    from headrace.actors.generator.torch_engine import TorchEngine

    TorchEngine(model_path="anywhere", kv="recompute")
    with pytest.raises(ValueError, match=r"engine\.kv must be keep or recompute, got 'salt'"):
        TorchEngine(model_path="anywhere", kv="salt")


def test_the_launcher_names_the_keys_that_a_user_sets(tmp_path: Path) -> None:
    from headrace.launch.building import build
    from headrace.launch.compose import compose_config

    def problems(*overrides: str) -> list[str]:
        composed = compose_config(["generator/engine=vllm", *overrides])
        config = composed.resolve(dir=str(tmp_path), id="r")
        return [problem.key for problem in composed.at_origins(build(config["generator"], "generator")[1])]

    assert problems() == problems("weights.kv=recompute", "weights.prefix_cache=salt") == []
    assert problems("weights.kv=recompute") == ["weights.prefix_cache"]
    assert problems("weights.kv=none") == ["weights.kv"]
    assert problems("weights.prefix_cache_max_versions=0") == ["weights.prefix_cache_max_versions"]
