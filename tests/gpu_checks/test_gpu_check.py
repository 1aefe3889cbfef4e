"""benchmarks/gpu_check.py without a GPU: it says so, and its own code runs over what a CPU has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch


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
