"""`headrace eval` by its command line: of a run's checkpoints and of a model folder, with the torch engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.models import ScratchLlama

HEADRACE = [sys.executable, "-m", "headrace.launch.cli"]


def headrace(*arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HEADRACE, *arguments], cwd=place, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below it, a finished run that evaluated its last version, and a model folder of the same weights."""
    place = tmp_path_factory.mktemp("eval")
    given = ["training.max_steps=4", "learner.checkpoint_every_steps=2", "learner.checkpoint_keep_last=9"]
    done = headrace("launch", "experiment=smoke", *given, place=place)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert headrace("export", "runs/latest", "model", place=place).returncode == 0
    return place


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(Path(done.stdout.splitlines()[-1]).read_text())
    return result


@pytest.mark.slow
class TestEval:
    def test_the_newest_checkpoint_is_what_training_evaluated_last(self, place: Path) -> None:
        run = (place / "runs" / "latest").resolve()
        last = json.loads((run / "report.json").read_text())["evaluations"][-1]
        result = result_of(headrace("eval", "runs/latest", place=place))
        assert result["step"] == last["step"] == 4
        assert result["version"] == last["version"]
        figures = result["figures"]
        assert figures["greedy"] == last["greedy"], "greedy answers are those of the same weights"
        assert (figures["sessions"], figures["missing"], figures["off_version"]) == (16 * 9, 0, 0)
        assert figures["pass_at_1"] == pytest.approx(figures["reward"])
        assert 0 <= figures["pass_at_1"] <= figures["pass_at_2"] <= figures["pass_at_4"] <= figures["pass_at_8"] <= 1
        shards = list(Path(result["trajectories"]).glob("*.jsonl"))
        lines = [json.loads(line) for shard in shards for line in shard.read_text().splitlines()]
        assert len(lines) == 16 * 9
        assert {line["purpose"] for line in lines} == {"eval"}
        assert (place / "runs" / "latest").resolve() == run, "latest is the newest training"

    def test_an_earlier_checkpoint_and_the_exported_folder(self, place: Path) -> None:
        earlier = result_of(headrace("eval", "runs/latest", "--step", "2", "evaluation.samples=1", "-q", place=place))
        assert (earlier["step"], earlier["figures"]["sessions"]) == (2, 32)
        tasks = ["experiment=smoke", "inference.context_tokens=512"]
        of_model = result_of(headrace("eval", "model", *tasks, "evaluation.greedy=true", place=place))
        of_run = result_of(headrace("eval", "runs/latest", place=place))
        same = {name for name in of_run["figures"] if name != "wall_s"}
        assert all(of_model["figures"][name] == of_run["figures"][name] for name in same)

    def test_ctrl_c_is_130_and_leaves_nothing(self, place: Path) -> None:
        command = [*HEADRACE, "eval", "runs/latest", "evaluation.samples=400"]
        launcher = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if "all actors are up" in line:
                break
        launcher.send_signal(signal.SIGINT)
        rest = launcher.communicate(timeout=60)[0]
        assert launcher.returncode == 130, rest
        assert "did not come to its end (interrupted)" in rest


def greedy_tokens(result: dict[str, Any]) -> dict[str, list[int]]:
    """By task."""
    shards = Path(result["trajectories"]).glob("*.jsonl")
    lines = [json.loads(line) for shard in shards for line in shard.read_text().splitlines()]
    return {line["task_id"]: line["token_ids"] for line in lines if line["temperature"] == 0}


@pytest.mark.slow
@pytest.mark.vllm
def test_both_engines_give_the_same_greedy_answers(tmp_path: Path) -> None:
    size = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "head_dim": 32, "intermediate_size": 64}
    ScratchLlama(**size, max_positions=128, init_std=0.1).prepare(tmp_path / "model", seed=0)
    given = ["model", "tasks=number_sorting", "inference.context_tokens=64", "sampling.max_tokens=16", "-q"]
    few = ["evaluation.num_prompts=16", "evaluation.samples=1"]
    torch, vllm = (
        greedy_tokens(result_of(headrace("eval", *given, *few, f"evaluator/engine={engine}", place=tmp_path)))
        for engine in ("torch", "vllm")
    )
    assert len(torch) == 16
    assert vllm == torch
