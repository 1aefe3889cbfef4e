"""benchmarks/gpu_check.py without a GPU: it says so, and its own code runs over what a CPU has."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.launch.compose import compose_config
from headrace.launch.preflight import check_config


@pytest.fixture
def recipe(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    return importlib.import_module("gpu_checks.recipe")


def run(repository: Path, tmp_path: Path, *options: str) -> tuple[dict[str, Any], str]:
    file = tmp_path / "found.json"
    command = [sys.executable, str(repository / "benchmarks" / "gpu_check.py"), "--json", str(file), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(file.read_text()), ended.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("options", [[], ["--single"]])
def test_without_a_gpu_everything_is_skipped_in_so_many_words(
    repository: Path, tmp_path: Path, options: list[str]
) -> None:
    found, printed = run(repository, tmp_path, *options)
    assert found["rows"] == found["failed"] == []
    for name in ("ipc", "nccl", "recipe"):
        assert f"SKIPPED {name}: this machine has no GPU" in printed
    assert "NOTHING WAS CHECKED" in printed


@pytest.mark.parametrize("turns", [[], ["mode=sync", "generator.engine.sleep_while_training=true"]])
def test_the_run_on_one_gpu_lacks_nothing_but_the_gpu(
    recipe: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, turns: list[str]
) -> None:
    """What it is given is a configuration that the preflight takes, were there a GPU and CuPy; and weights=auto would
    choose what it names."""
    pytest.importorskip("vllm")
    given = [*recipe.SMOLLM2_ON_ONE_GPU, *turns]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("headrace.launch.surroundings.importlib.util.find_spec", lambda name: name)
    config = compose_config(given).resolve(dir=str(tmp_path), id="1")
    assert check_config(config) == []
    assert config["weights"]["transport"] == "ipc"
    assert config["learner"]["sleep_engines"] == bool(turns)
    auto = compose_config([text for text in given if text != "weights=ipc"])
    assert auto.config.weights.transport == "ipc"


@pytest.mark.vllm
def test_vllms_names_that_only_a_gpu_would_use() -> None:
    """test_vllm_names.py has the others."""
    pytest.importorskip("vllm")
    from vllm import AsyncEngineArgs
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, uid_init_process_group
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_consumer
    from vllm.v1.engine.async_llm import AsyncLLM

    def has(function: Any, *names: str) -> bool:
        return set(names) <= set(inspect.signature(function).parameters)

    assert has(uid_init_process_group, "nccl_unique_id_bytes", "rank", "world_size", "device")
    assert has(NCCLWeightTransferInitInfo, "rank_offset", "world_size", "nccl_unique_id_b64")
    consumer = ("iterator", "group", "src", "post_unpack_func", "buffer_size_bytes", "num_buffers", "device")
    assert has(packed_nccl_broadcast_consumer, *consumer)
    assert has(AsyncEngineArgs, "enable_sleep_mode")
    assert has(AsyncLLM.sleep, "level")
    assert inspect.signature(AsyncLLM.wake_up).return_annotation in (bool, "bool")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_code_on_a_cpu(repository: Path, tmp_path: Path) -> None:
    found, printed = run(repository, tmp_path, "--cpu", "--megabytes", "16")
    nccl, recipe = found["rows"]
    assert nccl["check"] == "nccl (memory)"
    assert nccl["bytes"] > 16 << 20
    assert nccl["receivers"] == 2
    assert nccl["gb_per_s"] > 0 < nccl["device_copy_gb_per_s"]
    assert nccl["deadline_s"] <= nccl["killed_receiver_broken_s"] < nccl["deadline_s"] + 2, (
        "by its deadline, not before"
    )
    assert nccl["rebuilt"] == "without it"
    assert recipe["steps"] == len(recipe["train_reward"]) == 4
    assert recipe["updates"] >= 4
    assert recipe["updates_failed"] == 0
    assert recipe["tokens_per_s"] > 0
    assert 0 < recipe["pause_p50_s"] <= recipe["pause_p95_s"]
    assert "held out, by version:" in printed
    assert [text.partition(":")[0] for text in found["skipped"]] == ["ipc", "vllm_native"]
