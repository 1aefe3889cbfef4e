"""Runs of `benchmarks/self_identifying.py`: many updates of the torch engine; 200 of vLLM, whole and in two parts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def run(repository: Path, tmp_path: Path, *arguments: object, timeout_s: float) -> dict[str, Any]:
    result = tmp_path / "rows.json"
    command = [sys.executable, str(repository / "benchmarks" / "self_identifying.py"), *map(str, arguments)]
    command += ["--json", str(result), "--folder", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    row: dict[str, Any] = json.loads(result.read_text())["rows"][0]
    return row


def check(row: dict[str, Any], *, updates: int, kills: int) -> None:
    assert (row["updates"], row["kills"], row["restarts"]) == (updates, kills, kills)
    assert row["wrong"] == 0
    assert row["problems"] == []
    assert set(row["faults"]) == {"flipped byte", "removed segment", "wrong shape"}
    assert row["failed_updates"] == sum(row["faults"].values()) >= updates // 20
    assert row["tokens"] > 50 * updates
    assert row["mixed"] > updates // 4, "updates that fell into requests"
    assert row["versions"] > updates // 2


@pytest.mark.timeout(600)
def test_the_torch_engine(repository: Path, tmp_path: Path) -> None:
    arguments = ("--engine", "torch", "--updates", 400, "--kills", 3)
    check(run(repository, tmp_path, *arguments, timeout_s=580), updates=400, kills=3)


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_vllm(repository: Path, tmp_path: Path, tensor_parallel: int) -> None:
    pytest.importorskip("vllm")
    arguments = ("--engine", "vllm", "--updates", 200, "--kills", 2, "--tensor-parallel", tensor_parallel)
    check(run(repository, tmp_path, *arguments, timeout_s=880), updates=200, kills=2)
