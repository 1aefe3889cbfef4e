"""Weights that only an engine's worker can open: it verifies them beside decoding; the engine's process never does.
Here shared memory is in the place of device memory; the rest is what runs on a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.actors.generator.opened_weights import open_verified
from headrace.actors.generator.vllm_group_worker import WorkersRank
from headrace.transport.weights import Manifest, SenderSettings, WeightsMismatch
from headrace.transport.weights.layout import model_tensors
from headrace.transport.weights.shm import HEADER_BYTES, ShmWriter

TENSORS = {"a": torch.arange(300.0), "b": torch.ones(7, dtype=torch.bfloat16)}


@pytest.fixture
def writer() -> Iterator[ShmWriter]:
    writer = ShmWriter(SenderSettings(run_id="opened", bucket_bytes=1024, num_buffers=3))
    yield writer
    writer.close()


def staged(writer: ShmWriter, version: int) -> Manifest:
    made = writer.stage(TENSORS, version=version, step=version)
    assert made is not None
    return made.seal()


def flip(manifest: Manifest) -> None:
    with open(manifest.location, "r+b") as file:
        file.seek(HEADER_BYTES + 100)
        byte = file.read(1)[0]
        file.seek(HEADER_BYTES + 100)
        file.write(bytes([byte ^ 1]))


def outcome(place: WorkersRank) -> dict[str, Any]:
    assert place._task is not None
    place._task.join(60)
    return place.poll()


def opened(place: WorkersRank, manifest: Manifest) -> dict[str, Any]:
    place.begin(lambda: open_verified(manifest, "cpu"))
    return outcome(place)


def test_what_a_worker_opened_waits_until_it_is_loaded_once(writer: ShmWriter) -> None:
    place, manifest = WorkersRank("cpu"), staged(writer, 1)
    assert place.poll() == {"done": True}
    found = opened(place, manifest)
    assert found["done"]
    assert "error" not in found
    assert found["verify_s"] > 0
    assert place.holds(1)
    assert not place.holds(2)
    near = place.take(1)
    assert {name: tensor.tolist() for name, tensor in near.tensors()} == {n: t.tolist() for n, t in TENSORS.items()}
    near.check_unchanged()
    near.close()
    with pytest.raises(WeightsMismatch, match="has received nothing"):
        place.take(1)


def test_one_that_is_superseded_is_unmapped_and_cannot_be_loaded(writer: ShmWriter) -> None:
    place = WorkersRank("cpu")
    opened(place, staged(writer, 1))
    first = place._near
    assert first is not None
    opened(place, staged(writer, 2))
    assert place.holds(2)
    with pytest.raises(ValueError, match="closed"):
        next(first.tensors())
    with pytest.raises(WeightsMismatch, match="version 1 is to be loaded, and this worker has received version 2"):
        place.take(1)


def test_a_flipped_byte_is_found_in_the_worker_and_leaves_nothing_to_load(writer: ShmWriter) -> None:
    place, manifest = WorkersRank("cpu"), staged(writer, 1)
    flip(manifest)
    found = opened(place, manifest)
    assert found["error"][0] == "WeightsMismatch"
    assert "bucket 0" in found["error"][1]
    assert not place.holds(1)


def test_bytes_that_are_gone(writer: ShmWriter) -> None:
    place, manifest = WorkersRank("cpu"), staged(writer, 1)
    Path(manifest.location).unlink()
    assert opened(place, manifest)["error"][0] == "WeightsMismatch"


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_vllms_workers_open_and_verify_and_its_front_process_does_not(
    make_bench: Any, model_path: str, models: Any, prompts: Any, greedy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    from headrace.actors.generator import staged_weights, vllm_engine

    bench = make_bench(
        vllm_engine.VllmEngine(
            model_path=model_path, dtype="float32", max_num_seqs=24, tensor_parallel_size=2, cpu_threads_bind="0|1",
            prefix_cache="salt", num_threads=1,
        )
    )  # fmt: skip

    def refuse(manifest: Manifest) -> None:
        raise AssertionError("the engine's own process opened weights")

    monkeypatch.setattr(vllm_engine, "ON_DEVICE", frozenset({"shm"}))
    monkeypatch.setattr(staged_weights, "open_weights", refuse)
    monkeypatch.setattr(vllm_engine, "open_weights", refuse)

    async def in_flight() -> Any:
        request = asyncio.ensure_future(bench.engine.generate(bench.request(prompts[0], 400, seed=1)))
        await asyncio.sleep(0.05)
        timings = await bench.update(models["second"])
        completion = await request
        assert timings.pause_s >= timings.load_s > 0
        return completion

    versions = bench.run(in_flight()).versions.tolist()
    assert sorted(versions) == versions
    assert set(versions) <= {0, 1}
    for prompt in prompts[:4]:
        completion = bench.generate(prompt, 16, temperature=0.0)
        assert completion.token_ids.tolist() == greedy(models["second"], prompt, 16)
    broken = bench.stage(model_tensors(models["first"]))
    flip(broken)
    with pytest.raises(WeightsMismatch, match=r"worker 0: .*bucket 0"):
        bench.run(bench.engine.stage_weights(broken))
    with pytest.raises(WeightsMismatch, match="is not staged"):
        bench.run(bench.engine.commit_weights(broken))
    assert bench.generate(prompts[0], 8, temperature=0.0).versions.tolist() == [1] * 8
    bench.run(bench.update(models["first"]))
    assert bench.generate(prompts[0], 16, temperature=0.0).token_ids.tolist() == greedy(models["first"], prompts[0], 16)
