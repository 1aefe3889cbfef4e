"""What every engine promises: the same tests for the torch engine, for vLLM, and for a vLLM server of somebody else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.transport.weights import WeightsMismatch
from headrace.transport.weights.layout import model_tensors

SLOW = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(
    scope="module",
    params=["torch", pytest.param("vllm", marks=SLOW), pytest.param("vllm_server", marks=SLOW)],
)
def bench(
    request: pytest.FixtureRequest, model_path: str, make_bench: Any, make_server: Any, make_checkpoint_sender: Any
) -> Any:
    """One engine for the whole module: vLLM takes half a minute to start."""
    if request.param == "torch":
        from headrace.actors.generator.torch_engine import TorchEngine

        return make_bench(TorchEngine(model_path=model_path, max_batch=24))
    pytest.importorskip("vllm")
    if request.param == "vllm_server":
        from headrace.actors.generator.vllm_server_engine import VllmServerEngine

        url = make_server(model_path).url
        engine = VllmServerEngine(url=url, model_path=model_path, dtype="float32", prefix_cache="salt")
        return make_bench(engine, make_checkpoint_sender())
    from headrace.actors.generator.vllm_engine import VllmEngine

    return make_bench(
        VllmEngine(model_path=model_path, dtype="float32", max_num_seqs=24, prefix_cache="salt", num_threads=1)
    )


def test_greedy_equals_transformers(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    bench.serve(models["first"])
    for prompt in prompts[:8]:
        assert bench.generate(prompt, 24, temperature=0.0).token_ids.tolist() == greedy(models["first"], prompt, 24)


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.3])
def test_logprobs_are_those_of_a_plain_forward(
    bench: Any, models: Any, prompts: Any, forward_logprobs: Any, temperature: float
) -> None:
    """cases D77: PrimeIntellect-ai/prime-rl#697, huggingface/trl#4159, #4163. The logits are divided."""
    bench.serve(models["first"])
    gaps = []
    for seed, prompt in enumerate(prompts[:8]):
        completion = bench.generate(prompt, 24, temperature=temperature, seed=seed)
        expected = forward_logprobs(models["first"], prompt, completion.token_ids, temperature)
        gaps.append(np.abs(completion.logprobs - expected))
        assert completion.logprobs.dtype == np.float32
        assert len(completion.logprobs) == len(completion.token_ids) == len(completion.versions)
    assert np.concatenate(gaps).mean() <= 1e-4


def test_64_requests_of_different_lengths_at_once(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    bench.serve(models["first"])

    async def all_at_once() -> Any:
        requests = [bench.request(p, 1 + 3 * (i % 9), temperature=0.0) for i, p in enumerate(prompts)]
        return await asyncio.gather(*map(bench.engine.generate, requests))

    for i, (prompt, completion) in enumerate(zip(prompts, bench.run(all_at_once()), strict=True)):
        assert completion.token_ids.tolist() == greedy(models["first"], prompt, 1 + 3 * (i % 9))
        assert completion.finish_reason == "length"
    assert bench.engine.num_running == 0


def test_a_seed_fixes_the_answer_whoever_else_is_there(bench: Any, models: Any, prompts: Any) -> None:
    bench.serve(models["first"])
    alone = bench.generate(prompts[0], 20, seed=7)

    async def in_company() -> Any:
        requests = [bench.request(prompts[i], 20, seed=i) for i in range(1, 6)]
        requests.insert(3, bench.request(prompts[0], 20, seed=7))
        return (await asyncio.gather(*map(bench.engine.generate, requests)))[3]

    assert bench.run(in_company()).token_ids.tolist() == alone.token_ids.tolist()
    others = {tuple(bench.generate(prompts[0], 20, seed=seed).token_ids.tolist()) for seed in range(4)}
    assert len(others) == 4


def test_more_prompt_tokens_at_once_than_one_prefill_takes(bench: Any, models: Any) -> None:
    """vLLM on a CPU died of a seeded prompt that it prefilled in parts."""
    bench.serve(models["first"])
    generator = np.random.default_rng(1)
    prompts = [generator.integers(0, 128, size=100).tolist() for _ in range(40)]

    async def all_at_once() -> Any:
        requests = [bench.request(prompt, 2, seed=i) for i, prompt in enumerate(prompts)]
        return await asyncio.gather(*map(bench.engine.generate, requests))

    assert [len(completion.token_ids) for completion in bench.run(all_at_once())] == [2] * 40


def test_stop_tokens(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    bench.serve(models["first"])
    full = greedy(models["first"], prompts[1], 24)
    stop = full[5]
    completion = bench.generate(prompts[1], 24, temperature=0.0, stop_token_ids=(stop,))
    assert completion.token_ids.tolist() == full[: full.index(stop) + 1]
    assert completion.finish_reason == "stop"


def test_top_p_keeps_the_most_probable(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    bench.serve(models["first"])
    completion = bench.generate(prompts[2], 12, top_p=1e-6, seed=1)
    assert completion.token_ids.tolist() == greedy(models["first"], prompts[2], 12)


def test_a_request_beyond_the_context_is_refused(bench: Any) -> None:
    with pytest.raises(ValueError, match=r"prompt \(3\) \+ max_tokens \(510\) exceed the context of 512"):
        bench.generate([1, 2, 3], 510)
    with pytest.raises(ValueError, match="prompt is empty"):
        bench.generate([], 5)


def test_new_weights_are_served_and_old_ones_again(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    """cases E85: lightseekorg/tokenspeed#1373. An answer "OK" proves nothing; the tokens of the new model do."""
    for name in ("second", "first", "second"):
        before = bench.engine.version
        timings = bench.serve(models[name])
        assert bench.engine.version == bench.version > before
        assert 0 < timings.load_s <= timings.pause_s
        completion = bench.generate(prompts[0], 24, temperature=0.0)
        assert completion.token_ids.tolist() == greedy(models[name], prompts[0], 24)
        assert set(completion.versions.tolist()) == {bench.version}


def test_an_update_in_mid_request(bench: Any, models: Any, prompts: Any, forward_logprobs: Any) -> None:
    """cases E92: radixark/miles#2589, #2296. 16 long requests, none aborted; every token carries its version."""
    bench.serve(models["first"])

    async def update_while_running(delay_s: float) -> Any:
        requests = [bench.request(prompts[i], 300, seed=i) for i in range(16)]
        running = [asyncio.ensure_future(bench.engine.generate(request)) for request in requests]
        await asyncio.sleep(delay_s)
        timings = await bench.update(models["second"])
        return timings, await asyncio.gather(*running)

    for attempt in range(12):
        bench.serve(models["first"])
        old = bench.engine.version
        timings, completions = bench.run(update_while_running(0.03 * 1.6**attempt))
        for completion in completions:
            assert completion.finish_reason == "length"
            assert len(completion.token_ids) == 300
            assert (np.diff(completion.versions) >= 0).all()
            assert set(completion.versions.tolist()) <= {old, bench.version}
        inside = [i for i, c in enumerate(completions) if 0 < int((c.versions == old).sum()) < 300]
        if len(inside) == 16:
            break
    else:
        pytest.fail("no update fell into the requests")
    assert timings.requests_running == 16
    for i in inside[:3]:
        boundary = int((completions[i].versions == old).sum())
        expected = forward_logprobs(models["first"], prompts[i], completions[i].token_ids[:boundary], 1.0)
        assert np.abs(completions[i].logprobs[:boundary] - expected).mean() <= 1e-4


def test_one_corrupted_byte_leaves_the_old_version(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    bench.serve(models["first"])
    version = bench.engine.version
    manifest = bench.stage(model_tensors(models["second"]))
    path = Path(manifest.location)
    path = path / "model.safetensors" if path.is_dir() else path
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(path.stat().st_size // 2)
        file.write(bytes([byte ^ 0x10]))
    with pytest.raises(WeightsMismatch, match="checksum"):
        bench.run(bench.engine.stage_weights(manifest))
    with pytest.raises(WeightsMismatch, match="not staged"):
        bench.run(bench.engine.commit_weights(manifest))
    completion = bench.generate(prompts[0], 12, temperature=0.0)
    assert completion.token_ids.tolist() == greedy(models["first"], prompts[0], 12)
    assert set(completion.versions.tolist()) == {version}


def test_wrong_names_shapes_and_dtypes_are_listed(bench: Any, models: Any) -> None:
    """cases E83 (pytorch/pytorch#91535) and E86 (sgl-project/sglang#33588)."""
    manifest = bench.stage(model_tensors(models["first"]))
    first, second, *rest = manifest.tensors
    wrong = (replace(first, name="stranger"), replace(second, shape=(1, *second.shape)), *rest[1:])
    wrong = (*wrong[:2], replace(wrong[2], dtype="int64"), *wrong[3:])
    with pytest.raises(WeightsMismatch) as caught:
        bench.run(bench.engine.stage_weights(replace(manifest, tensors=wrong)))
    text = str(caught.value)
    for part in (f"missing: {first.name}", f"missing: {rest[0].name}", "unknown to the receiver: stranger"):
        assert part in text
    assert f"{second.name}: shape" in text
    assert f"{wrong[2].name}: dtype int64 sent" in text


def test_bytes_that_vanish_between_stage_and_commit(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    """A commit of what was never staged, or staged and replaced, changes nothing."""
    bench.serve(models["first"])
    staged = bench.stage(model_tensors(models["second"]))
    bench.run(bench.engine.stage_weights(staged))
    with pytest.raises(WeightsMismatch, match="not staged"):
        bench.run(bench.engine.commit_weights(replace(staged, version=staged.version + 5)))
    bench.run(bench.engine.commit_weights(staged))
    assert bench.generate(prompts[0], 8, temperature=0.0).token_ids.tolist() == greedy(models["second"], prompts[0], 8)


def test_cancelling_frees_the_place(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    bench.serve(models["first"])

    async def cancel_most() -> Any:
        long = [asyncio.ensure_future(bench.engine.generate(bench.request(p, 480))) for p in prompts[:40]]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.engine.num_running == 40
        for task in long:
            task.cancel()
        ended = await asyncio.gather(*long, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)
        assert bench.engine.num_running == 0
        return await bench.engine.generate(bench.request(prompts[3], 8, temperature=0.0))

    assert bench.run(cancel_most()).token_ids.tolist() == greedy(models["first"], prompts[3], 8)


def test_prompt_logprobs_are_those_of_a_plain_forward(
    bench: Any, models: Any, prompts: Any, forward_logprobs: Any
) -> None:
    """What the probe of every update compares; also where the prompt's prefix is cached already."""
    bench.serve(models["second"])
    text = np.asarray(prompts[1] + prompts[2], dtype=np.int32)
    bench.generate(text.tolist(), 4)
    request = replace(bench.request(text.tolist(), 1), prompt_logprobs=True)
    completion = bench.run(bench.engine.generate(request))
    expected = forward_logprobs(models["second"], text[:1].tolist(), text[1:], 1.0)
    assert completion.prompt_logprobs.dtype == np.float32
    assert np.abs(completion.prompt_logprobs - expected).mean() <= 1e-4
    assert completion.versions.tolist() == [bench.engine.version]
    assert len(bench.generate(text.tolist(), 1).prompt_logprobs) == 0
