"""`headrace replay` of real runs with the torch engine: a step comes out the same, to the last bit, on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEADRACE = [sys.executable, "-m", "headrace.launch.cli"]
SMALL = ["experiment=smoke", "training.max_steps=6", "evaluation.num_prompts=0", "learner.pretrain.steps=100"]
RUNS = {
    "kl_and_several_updates": [
        *SMALL, "learner/kl=k2", "learner.kl.coefficient=0.05", "learner.num_minibatches=2", "learner.num_epochs=2",
        "learner.checkpoint_every_steps=2", "learner.checkpoint_keep_last=9",
    ],
    "adapters_and_a_critic": [
        *SMALL, "learner/lora=default", "learner/critic=default", "learner.advantage=null", "learner.lr=1e-3",
        "learner.checkpoint_every_steps=3", "learner.checkpoint_keep_last=9",
    ],
}  # fmt: skip


def headrace(*arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HEADRACE, *arguments], cwd=place, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_two_steps_of_a_run_whose_folder_was_moved(kind: str, tmp_path: Path) -> None:
    done = headrace("launch", *RUNS[kind], place=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    moved = tmp_path / "moved"
    (tmp_path / "runs" / "latest").resolve().rename(moved)
    steps = {record["step"]: record for record in map(json.loads, (moved / "trained.jsonl").read_text().splitlines())}
    assert sorted(steps) == [1, 2, 3, 4, 5, 6]
    reported = {}
    for line in map(json.loads, (moved / "metrics.jsonl").read_text().splitlines()):
        if line["stream"] == "train":
            reported[line["step"]] = line["values"]
    for step, begins in (
        (3, {"kl_and_several_updates": 3}.get(kind, 1)),
        (6, {"kl_and_several_updates": 5}.get(kind, 4)),
    ):
        again = headrace("replay", str(moved), "--step", str(step), "--json", f"{step}.json", place=tmp_path)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "the same to the last bit (" in again.stdout
        result = json.loads((tmp_path / f"{step}.json").read_text())
        assert [one["step"] for one in result["steps"]] == list(range(begins, step + 1))
        assert result["same"] is result["within_tolerance"] is True
        for name in ("loss", "grad_norm"):
            assert result[name]["recorded"] == result[name]["again"] == steps[step][name] == reported[step][name]
    assert result["grad_norm"]["again"] > 0

    (moved / "trained.jsonl").write_text(  # a record that tells something else is found out
        "".join(json.dumps(record | {"loss": record["loss"] + 1}) + "\n" for record in steps.values())
    )
    assert headrace("replay", str(moved), "--step", "6", place=tmp_path).returncode == 1
    refused = headrace("replay", str(moved), "--step", "7", place=tmp_path)
    assert (refused.returncode, "has no step 7; it has steps 1 to 6" in refused.stderr) == (1, True)
