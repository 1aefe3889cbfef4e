"""What only a running vLLM can show: a failed load is undone, and a killed core releases every caller."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from headrace.actors.generator.engine import EngineDied
from headrace.transport.weights import WeightsMismatch
from headrace.transport.weights.layout import model_tensors

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bench(model_path: str, make_bench: Any) -> Any:
    pytest.importorskip("vllm")
    from headrace.actors.generator.vllm_engine import VllmEngine

    return make_bench(VllmEngine(model_path=model_path, dtype="float32", prefix_cache="salt", num_threads=1))


def test_a_load_that_fails_is_undone_with_requests_running(bench: Any, models: Any, prompts: Any, greedy: Any) -> None:
    """The worker's load raises between start and finish, with the model half meta: the version in service is loaded
    again from its buffer, and the requests in flight end as if nothing had happened."""
    bench.serve(models["second"])
    version = bench.engine.version
    manifest = bench.stage(model_tensors(models["first"]))
    tensors = tuple(
        replace(spec, name=spec.name.replace("v_proj", "nowhere")) if "0.self_attn.v_proj" in spec.name else spec
        for spec in manifest.tensors
    )
    broken = replace(manifest, tensors=tensors)

    async def update_while_running() -> Any:
        running = [asyncio.ensure_future(bench.engine.generate(bench.request(p, 100))) for p in prompts[:8]]
        await bench.engine.stage_weights(manifest)
        with pytest.raises(WeightsMismatch, match=f"version {version} serves on"):
            await bench.engine.commit_weights(broken)
        return await asyncio.gather(*running)

    for completion in bench.run(update_while_running()):
        assert completion.finish_reason == "length"
        assert set(completion.versions.tolist()) == {version}
    assert bench.generate(prompts[0], 12, temperature=0.0).token_ids.tolist() == greedy(
        models["second"], prompts[0], 12
    )
    bench.serve(models["first"])
    answer = bench.generate(prompts[0], 12, temperature=0.0)
    assert answer.token_ids.tolist() == greedy(models["first"], prompts[0], 12)


def test_a_killed_core_fails_every_caller(bench: Any, prompts: Any) -> None:
    """messaging.md 20: calls that hang after a crash. The last test here: it kills the engine."""

    async def kill() -> Any:
        running = [asyncio.ensure_future(bench.engine.generate(bench.request(p, 480))) for p in prompts[:8]]
        await asyncio.sleep(0.05)
        for process in bench.engine._engine.engine_core.resources.engine_manager.processes:
            os.kill(process.pid, signal.SIGKILL)
        return await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 30)

    assert [type(end) for end in bench.run(kill())] == [EngineDied] * 8
    with pytest.raises(EngineDied):
        bench.generate(prompts[0], 4)
