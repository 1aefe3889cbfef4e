"""An engine on a `vllm serve` of somebody else's: a real one, killed and started again; the contract is in
test_engine_contract.py, what a scripted server does wrong in test_vllm_server_faults.py."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.vllm_server_client import ServerRefused
from headrace.actors.generator.vllm_server_engine import VllmServerEngine
from headrace.transport.weights import WeightsMismatch
from headrace.transport.weights.layout import model_tensors

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]
pytest.importorskip("vllm")

KEY_ENV, KEY = "HEADRACE_TEST_VLLM_KEY", "of-this-test-alone"


@pytest.fixture(scope="module")
def server(model_path: str, make_server: Any) -> Iterator[Any]:
    """It has an API key; and a back-end for weights that it cannot run without GPUs, but takes a model apart for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_ENV, KEY)
        yield make_server(model_path, "--api-key", KEY, "--weight-transfer-config", '{"backend": "nccl"}')


def engine_at(server: Any, model_path: str, **settings: Any) -> VllmServerEngine:
    return VllmServerEngine(url=server.url, model_path=model_path, api_key_env=KEY_ENV, **settings)


@pytest.fixture
def bench(server: Any, model_path: str, make_bench: Any, make_checkpoint_sender: Any) -> Any:
    return make_bench(engine_at(server, model_path, dtype="float32"), make_checkpoint_sender())


def gap(bench: Any, model: Any, prompts: Any, forward_logprobs: Any) -> float:
    gaps = []
    for seed, prompt in enumerate(prompts[:8]):
        completion = bench.generate(prompt, 24, temperature=0.7, seed=seed)
        gaps.append(np.abs(completion.logprobs - forward_logprobs(model, prompt, completion.token_ids, 0.7)))
    return float(np.concatenate(gaps).max())


async def until_generating(server: Any, before: int) -> None:
    """More than `before` tokens: the requests that were just made are under way."""
    while await asyncio.to_thread(server.num_generated) <= before:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0)


def test_a_server_that_goes_and_comes_back(
    bench: Any, server: Any, models: Any, model_path: str, prompts: Any, forward_logprobs: Any
) -> None:
    """What it has after its restart is its own model; nobody takes that for the version that was loaded before."""
    bench.serve(models["second"])
    assert gap(bench, models["second"], prompts, forward_logprobs) <= 1e-4

    before = server.num_generated()

    async def ask_for_ever(prompt: Any) -> None:
        while True:  # however fast it answers, it is killed under a request
            await bench.engine.generate(bench.request(prompt, 480))

    async def killed_under_requests() -> Any:
        running = [asyncio.ensure_future(ask_for_ever(prompt)) for prompt in prompts[:16]]
        await until_generating(server, before)
        server.kill()
        return await asyncio.gather(*running, return_exceptions=True)

    ended = bench.run(killed_under_requests(), 60)
    assert [type(end) for end in ended] == [EngineDied] * 16
    with pytest.raises(EngineDied):
        bench.generate(prompts[0], 2)
    server.start(wait=False)
    successor = engine_at(server, model_path, dtype="float32", start_timeout_s=400)
    bench.run(bench.engine.close())
    bench.engine = successor  # waits for the server
    bench.run(successor.start(), 540)
    assert successor.version == 0
    assert gap(bench, models["first"], prompts, forward_logprobs) <= 1e-4
    bench.serve(models["second"])
    assert gap(bench, models["second"], prompts, forward_logprobs) <= 1e-4


def test_a_server_whose_labels_somebody_else_sets_is_left(bench: Any, server: Any, models: Any, prompts: Any) -> None:
    """As after a restart: the tokens carry a label that this engine gave to nothing."""
    bench.serve(models["second"])
    stranger = engine_at(server, bench.engine._model_path)
    bench.run(stranger.start())
    with pytest.raises(EngineDied, match="was restarted, or somebody else steers it"):
        bench.generate(prompts[0], 4)
    bench.run(stranger.close())


def test_a_folder_that_vanishes_between_stage_and_commit(
    bench: Any, models: Any, prompts: Any, forward_logprobs: Any
) -> None:
    """vLLM's model is broken by a load that fails: the old version is loaded again before anything is served."""
    bench.serve(models["second"])
    version = bench.engine.version
    manifest = bench.stage(model_tensors(models["first"]))
    bench.run(bench.engine.stage_weights(manifest))
    shutil.rmtree(manifest.location)
    with pytest.raises(WeightsMismatch, match=f"failed to load, version {version} serves on"):
        bench.run(bench.engine.commit_weights(manifest))
    assert bench.engine.version == version
    assert gap(bench, models["second"], prompts, forward_logprobs) <= 1e-4
    assert set(bench.generate(prompts[0], 4).versions.tolist()) == {version}


def test_keys_and_values_are_computed_anew_where_asked(
    server: Any, model_path: str, make_bench: Any, make_checkpoint_sender: Any, models: Any, prompts: Any,
    forward_logprobs: Any,
) -> None:  # fmt: skip
    """kv=recompute: what follows the update is what the new weights alone make of the whole text."""
    engine = engine_at(server, model_path, kv="recompute", prefix_cache="salt")
    bench = make_bench(engine, make_checkpoint_sender())

    async def until_new(seed: int) -> Any:
        while True:  # however fast it answers, the update comes into the middle of a request
            completion = await bench.engine.generate(bench.request(prompts[0], 400, seed=seed))
            if completion.versions.any():
                return completion

    async def update_while_running() -> Any:
        manifest = bench.stage(model_tensors(models["second"]))
        await bench.engine.stage_weights(manifest)
        before = server.num_generated()
        running = [asyncio.ensure_future(until_new(seed)) for seed in range(4)]
        await until_generating(server, before)
        await bench.engine.commit_weights(manifest)
        return await asyncio.gather(*running)

    mixed = [completion for completion in bench.run(update_while_running()) if (completion.versions == 0).any()]
    assert mixed
    for completion in mixed:
        boundary = int((completion.versions == 0).sum())
        expected = forward_logprobs(models["second"], prompts[0], completion.token_ids, 1.0)
        assert np.abs(completion.logprobs[boundary:] - expected[boundary:]).max() <= 1e-4


def test_a_server_that_wants_a_key_and_gets_none_or_another(server: Any, model_path: str, monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match=r"answers 401: it was started with --api-key, and no key was sent"):
        asyncio.run(_start_and_close(VllmServerEngine(url=server.url, model_path=model_path)))
    monkeypatch.setenv("HEADRACE_TEST_OTHER_KEY", "guessed")
    other = VllmServerEngine(url=server.url, model_path=model_path, api_key_env="HEADRACE_TEST_OTHER_KEY")
    with pytest.raises(
        ValueError, match=r"variable HEADRACE_TEST_OTHER_KEY \(generator.engine.api_key_env\) is another"
    ):
        asyncio.run(_start_and_close(other))


def test_without_gpus_it_takes_no_nccl(server: Any, model_path: str) -> None:
    with pytest.raises(ValueError, match="it runs on a CPU, and NCCL needs GPUs at both ends; add weights=checkpoint"):
        asyncio.run(_start_and_close(engine_at(server, model_path, transport="nccl")))


def test_an_update_that_was_left_open_is_ended_and_the_model_mended(
    bench: Any, models: Any, prompts: Any, forward_logprobs: Any
) -> None:
    """What an engine does first where weights come by nccl: vLLM's own words for an update that is open, and a model
    that was taken apart twice and is whole after the next load."""
    bench.serve(models["second"])
    client, ranks = bench.engine._client, bench.engine.ranks
    bench.run(client.pause())
    bench.run(client.start_update())
    bench.run(ranks.make_whole())
    bench.run(client.resume())
    assert gap(bench, models["second"], prompts, forward_logprobs) <= 1e-4, "nothing arrived, nothing changed"
    with pytest.raises(ServerRefused, match="start_weight_update must be called before"):
        bench.run(client.update({"names": [], "dtype_names": [], "shapes": []}, 30))
    bench.run(client.end_transfer())
    bench.serve(models["first"])
    assert gap(bench, models["first"], prompts, forward_logprobs) <= 1e-4


def test_another_model_is_refused_with_what_differs(server: Any, tmp_path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(
        vocab_size=130, hidden_size=96, intermediate_size=64, num_hidden_layers=3, num_attention_heads=3,
        head_dim=32, architectures=["LlamaForCausalLM"], max_position_embeddings=1024,
    ).save_pretrained(tmp_path)  # fmt: skip
    engine = engine_at(server, str(tmp_path), dtype="bfloat16")
    with pytest.raises(ValueError, match="does not fit this run") as caught:
        asyncio.run(_start_and_close(engine))
    for part in (
        "--max-model-len is 512, the run needs 1024",
        "--dtype is float32, the run's inference.dtype is bfloat16",
        "its vocabulary: 128, the run's: 130",
        "its hidden size: 64, the run's: 96",
        "its layers: 2, the run's: 3",
        "Start it as: VLLM_SERVER_DEV_MODE=1 vllm serve",
        f'--logprobs-mode processed_logprobs --api-key "${KEY_ENV}" --no-enable-chunked-prefill',
    ):
        assert part in str(caught.value)


async def _start_and_close(engine: VllmServerEngine) -> None:
    try:
        await asyncio.wait_for(engine.start(), 240)
    finally:
        await engine.close()
