"""Adapters in an engine: the same tests for the torch engine and for vLLM's own LoRA kernels.

The learner's end is the real one: PEFT's adapters, its sender, and log-probs by PEFT's forward.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from headrace.actors.learner.adapter_sender import AdapterSender
from headrace.actors.learner.adapters import Adapters
from headrace.actors.learner.lora import LoraSettings
from headrace.transport.weights import Adapter, Manifest, SenderSettings, WeightsMismatch
from headrace.transport.weights.shm import HEADER_BYTES

pytest.importorskip("peft")
RANK = 4


class Adapted:
    """A model with adapters, and what sends them to the bench's engine. own_base: the base travels too."""

    def __init__(self, bench: Any, model: LlamaForCausalLM, *, own_base: bool, rank: int = RANK) -> None:
        self.bench, self.model, self.own_base = bench, model, own_base
        self.adapters = Adapters(model, LoraSettings(rank=rank, alpha=6.0), base=Path())
        self.sender = AdapterSender("shm", SenderSettings(run_id=f"lora-{id(self)}", num_buffers=8), self)

    def base_tensors(self) -> dict[str, torch.Tensor] | None:
        return self.adapters.base_tensors() if self.own_base else None

    def adapter(self, base: Manifest | None) -> Adapter:
        return self.adapters.description(base)

    def move(self, seed: int) -> None:
        torch.manual_seed(seed)
        for tensor in self.adapters.tensors().values():
            tensor.copy_(0.2 * torch.randn_like(tensor))

    def stage(self) -> Manifest:
        self.bench.version += 1
        self.sender.release(self.bench.version - 3)
        staged = self.sender.stage(self.adapters.tensors(), version=self.bench.version, step=1)
        assert staged is not None
        return staged.seal()

    async def update(self, manifest: Manifest) -> Any:
        await self.bench.engine.stage_weights(manifest)
        return await self.bench.engine.commit_weights(manifest)

    def serve(self, seed: int) -> Any:
        self.move(seed)
        return self.bench.run(self.update(self.stage()))


@pytest.fixture(
    scope="module",
    params=["torch", pytest.param("vllm", marks=[pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)])],
)
def bench(request: pytest.FixtureRequest, model_path: str, make_bench: Any) -> Any:
    if request.param == "torch":
        from headrace.actors.generator.torch_engine import TorchEngine

        return make_bench(TorchEngine(model_path=model_path, max_batch=24))
    pytest.importorskip("vllm")
    from headrace.actors.generator.vllm_engine import VllmEngine

    settings = {"dtype": "float32", "max_num_seqs": 24, "prefix_cache_max_versions": 1, "num_threads": 1}
    return make_bench(VllmEngine(model_path=model_path, lora_rank=RANK, **settings))


@pytest.fixture(scope="module")
def make(bench: Any) -> Any:
    made: list[Adapted] = []

    def go(model: LlamaForCausalLM, **options: Any) -> Adapted:
        made.append(Adapted(bench, model, **options))
        return made[-1]

    yield go
    for adapted in made:
        adapted.sender.close()


def fresh(models: Any, name: str) -> LlamaForCausalLM:
    """Adapters change a model in place."""
    model = LlamaForCausalLM(models[name].config).eval()
    model.load_state_dict(models[name].state_dict())
    return model


def gap(bench: Any, model: Any, prompts: Any, forward_logprobs: Any) -> float:
    gaps = []
    for seed, prompt in enumerate(prompts[:8]):
        completion = bench.generate(prompt, 24, seed=seed)
        assert set(completion.versions.tolist()) == {bench.engine.version}
        gaps.append(np.abs(completion.logprobs - forward_logprobs(model, prompt, completion.token_ids, 1.0)))
    return float(np.concatenate(gaps).max())


def test_version_0_is_the_base(bench: Any, models: Any, prompts: Any, forward_logprobs: Any) -> None:
    """The first test here: no adapter has come yet."""
    assert bench.engine.version == 0
    assert gap(bench, models["first"], prompts, forward_logprobs) < 1e-4


def test_adapters_upon_the_model_folders_weights(
    bench: Any, make: Any, models: Any, prompts: Any, forward_logprobs: Any
) -> None:
    adapted = make(fresh(models, "first"), own_base=False)
    for seed in (1, 2, 3):
        timings = adapted.serve(seed)
        assert 0 < timings.load_s <= timings.pause_s
        assert gap(bench, adapted.model, prompts, forward_logprobs) < 1e-4
        assert gap(bench, models["first"], prompts, forward_logprobs) > 0.5, "they do something"


def test_one_flipped_byte_is_found_and_the_old_version_serves_on(
    bench: Any, make: Any, models: Any, prompts: Any, forward_logprobs: Any
) -> None:
    adapted = make(fresh(models, "first"), own_base=False)
    adapted.serve(4)
    served = bench.engine.version
    manifest = adapted.stage()
    with open(manifest.location, "r+b") as file:
        file.seek(HEADER_BYTES + manifest.nbytes // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(WeightsMismatch, match="bad checksums"):
        bench.run(bench.engine.stage_weights(manifest))
    assert bench.engine.version == served
    assert gap(bench, adapted.model, prompts, forward_logprobs) < 1e-4


def test_what_does_not_fit_is_refused_with_the_list(bench: Any, make: Any, models: Any) -> None:
    adapted = make(fresh(models, "first"), own_base=False)
    manifest = adapted.stage()
    assert manifest.adapter is not None
    served = bench.engine.version
    wrong_rank = replace(manifest, adapter=replace(manifest.adapter, rank=2))
    with pytest.raises(WeightsMismatch, match=r"lora_A.weight: shape \(4, 64\) sent, \(2, 64\) expected"):
        bench.run(bench.engine.stage_weights(wrong_rank))
    tensors = tuple(replace(t, name=t.name.replace("up_proj", "nowhere")) for t in manifest.tensors)
    with pytest.raises(WeightsMismatch, match=r"missing: .*up_proj.*unknown to the receiver: .*nowhere"):
        bench.run(bench.engine.stage_weights(replace(manifest, tensors=tensors)))
    assert bench.engine.version == served


def test_the_base_comes_first_and_once(bench: Any, make: Any, models: Any, prompts: Any, forward_logprobs: Any) -> None:
    """What a learner does that pre-trained; a second learner life sends the same base from elsewhere."""
    adapted = make(fresh(models, "second"), own_base=True)
    adapted.serve(5)
    held = bench.engine._held
    assert held is not None
    assert gap(bench, adapted.model, prompts, forward_logprobs) < 1e-4
    again = make(fresh(models, "second"), own_base=True)
    again.serve(6)
    assert bench.engine._held is held, "the same bytes were not loaded anew"
    assert gap(bench, again.model, prompts, forward_logprobs) < 1e-4
    with pytest.raises(WeightsMismatch, match="replaced in this engine"):
        make(fresh(models, "first"), own_base=False).serve(7)


def test_an_update_in_mid_request(bench: Any, make: Any, models: Any, prompts: Any, forward_logprobs: Any) -> None:
    """Requests in flight go on with the new factors, and each token's version says which made it."""
    adapted = make(fresh(models, "second"), own_base=True)
    adapted.serve(8)
    old = bench.engine.version
    adapted.move(9)

    async def update_while_running(delay_s: float) -> Any:
        running = [asyncio.ensure_future(bench.engine.generate(bench.request(p, 300, seed=1))) for p in prompts[:8]]
        await asyncio.sleep(delay_s)
        await adapted.update(manifest)
        return await asyncio.gather(*running)

    mixed: list[tuple[list[int], Any]] = []
    for attempt in range(12):
        manifest = adapted.stage()
        completions = bench.run(update_while_running(0.03 * 1.6**attempt))
        pairs = zip(prompts[:8], completions, strict=True)
        mixed = [(prompt, c) for prompt, c in pairs if {old, manifest.version} == set(c.versions.tolist())]
        if mixed:
            break
        adapted.serve(8)
        old = bench.engine.version
        adapted.move(9)
    assert mixed
    for prompt, completion in mixed:
        assert completion.finish_reason == "length"
        first_new = int(np.argmax(completion.versions == manifest.version))
        adapted.move(8)
        before = forward_logprobs(adapted.model, prompt, completion.token_ids, 1.0)
        assert np.abs(completion.logprobs - before)[:first_new].max() < 1e-4
        assert np.abs(completion.logprobs - before)[first_new:].max() > 0.1


def test_full_weights_put_the_adapter_away(bench: Any, models: Any, prompts: Any, forward_logprobs: Any) -> None:
    bench.version = max(bench.version, bench.engine.version)
    bench.serve(models["first"])
    assert gap(bench, models["first"], prompts, forward_logprobs) < 1e-4


def test_a_load_that_fails_leaves_the_adapter_that_serves(
    bench: Any, make: Any, models: Any, prompts: Any, forward_logprobs: Any
) -> None:
    """The buffer is overwritten between staging and commit, as for an engine that was taken for gone."""
    adapted = make(fresh(models, "second"), own_base=True)
    adapted.serve(10)
    served = bench.engine.version
    manifest = adapted.stage()
    bench.run(bench.engine.stage_weights(manifest))
    adapted.sender.release(manifest.version)
    for _ in range(8):  # the freed buffer is among those that are taken next
        adapted.sender.release(adapted.stage().version)
    with pytest.raises(WeightsMismatch, match=f"version {served} serves on"):
        bench.run(bench.engine.commit_weights(manifest))
    assert bench.engine.version == served
    assert gap(bench, adapted.model, prompts, forward_logprobs) < 1e-4
