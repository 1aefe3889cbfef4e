"""The smallest run with adapters, by its command line: pre-trained whole, trained by adapters, exported plain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

CLI = [sys.executable, "-m", "headrace.launch.cli"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("peft")
    place = tmp_path_factory.mktemp("lora")
    command = [*CLI, "launch", "experiment=smoke", "learner/lora=default", "learner.lora.rank=4", "learner/kl=k2"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return (place / "runs" / "latest").resolve()


def records(run_folder: Path, stream: str) -> list[dict[str, float]]:
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [record["values"] for record in map(json.loads, lines) if record["stream"] == stream]


def test_it_trains_and_sends_adapters_alone(run_folder: Path) -> None:
    steps = records(run_folder, "train")
    assert len(steps) == 20
    assert all(step["grad_norm"] > 0 for step in steps)
    adapters = load_file(run_folder / "checkpoints" / "latest" / "adapter_model.safetensors")
    num_bytes = sum(tensor.nbytes for tensor in adapters.values())
    assert {update["nbytes"] for update in records(run_folder, "weights")} == {num_bytes}
    assert any(np.abs(tensor).max() > 1e-3 for name, tensor in adapters.items() if "lora_B" in name)
    report = json.loads((run_folder / "report.json").read_text())
    assert report["weight_updates"]["count"] > 1
    assert report["logprob_gap"]["probe"]["mean"] < 1e-4, "the engine has the adapters that the learner trained"


def test_the_base_is_what_pretrain_made_and_the_export_is_a_plain_model(run_folder: Path, tmp_path: Path) -> None:
    command = [*CLI, "export", str(run_folder), str(tmp_path / "out")]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    first, base, merged = (
        load_file(folder / "model.safetensors")
        for folder in (run_folder / "model", run_folder / "checkpoints" / "base", tmp_path / "out")
    )
    assert first.keys() == base.keys() == merged.keys()
    assert all(np.abs(first[name] - base[name]).max() > 1e-4 for name in base), "every weight was pre-trained"
    changed = {name for name in base if not np.array_equal(base[name], merged[name])}
    assert changed == {name for name in base if "_proj." in name}


def test_nothing_is_left(run_folder: Path) -> None:
    run_id = str(yaml.safe_load((run_folder / "config.yaml").read_text())["run"]["id"])
    assert not [path for path in Path("/dev/shm").iterdir() if run_id in path.name]
