"""What a configuration needs of the machine: each lack is named by its key, and looking leaves no trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace.launch.checks import VLLM
from headrace.launch.surroundings import check_devices, check_folders, check_gpu, check_models, check_shared_memory
from headrace.launch.topology import ProcessPlan


def nested(key: str, value: object) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


WRITTEN = [
    "grader.trajectories_dir",
    "learner.checkpoints_dir",
    "learner.trained_path",
    "monitor.run_dir",
    "dispatcher.ledger_path",
]


@pytest.mark.parametrize("key", WRITTEN)
def test_a_place_that_cannot_be_written(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("")
    assert check_folders(nested(key, str(tmp_path / "a" / "b" / "c"))) == []
    for bad in (tmp_path / "file" / "a" / "b", Path("/proc/a/b")):
        problems = check_folders(nested(key, str(bad)))
        assert [p.key for p in problems] == [key]
        assert str(bad) in problems[0].given
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("key", ["learner.model_path", "environment.model_path", "generator.engine.model_path"])
def test_a_path_of_a_model_that_is_not_there(tmp_path: Path, key: str) -> None:
    assert [p.key for p in check_models(nested(key, str(tmp_path)), tmp_path)] == [key]
    (tmp_path / "config.json").write_text("{}")
    assert check_models(nested(key, str(tmp_path)), tmp_path) == []
    assert check_models(nested(key, "owner/model"), tmp_path) == []


def test_a_context_longer_than_the_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4}))
    assert check_models(nested("inference.context_tokens", 4), tmp_path) == []
    problems = check_models(nested("inference.context_tokens", 5), tmp_path)
    assert [p.key for p in problems] == ["inference.context_tokens"]
    assert "4 positions" in problems[0].allowed


def test_a_learner_on_a_device_that_it_does_not_get(monkeypatch: pytest.MonkeyPatch) -> None:
    local = {"learner": {"device": "cuda"}, "launch": {"_target_": "headrace.launch.local.LocalLauncher"}}
    plan = ProcessPlan("learner-0", "n", "learner", ("learner/0",))
    with_device = ProcessPlan("learner-0", "n", "learner", ("learner/0",), devices=("0",))
    problems = check_devices(local, (plan,))
    assert [p.key for p in problems] == ["learner.device"]
    assert "topology.nodes.n.actors.learner.devices=1" in problems[0].fix
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert ["finds no GPU" in p.allowed for p in check_devices(local, (with_device,))] == [True]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert check_devices(local, (with_device,)) == []
    assert check_devices({"learner": {"device": "cpu"}}, (plan,)) == []
    assert check_devices(local, ()) == []


@pytest.mark.parametrize(
    ("key", "given", "fix"),
    [("weights.transport", "ipc", "weights=shm"), ("weights.communicator", "cupy", "weights.communicator=memory")],
)
def test_weights_between_gpus_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, key: str, given: str, fix: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (problem,) = check_gpu(nested(key, given))
    assert (problem.key, problem.given) == (key, repr(given))
    assert "finds no GPU" in problem.allowed
    assert fix in problem.fix
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = check_gpu(nested(key, given))
    assert "CuPy is not installed" in problem.allowed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert check_gpu(nested(key, given)) == []
    assert check_gpu(nested(key, "auto")) == []


def test_engines_that_sleep_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(target: str) -> dict[str, Any]:
        return {"generator": {"engine": {"_target_": target, "sleep_while_training": True}}}

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (problem,) = check_gpu(asked(VLLM))
    assert problem.key == "generator.engine.sleep_while_training"
    assert "finds no GPU" in problem.allowed
    assert check_gpu(asked("mine.Engine")) == []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert check_gpu(asked(VLLM)) == []


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, 2 * 4 * 250_000 + 2 * 8),
        ({"weights_dtype": "bfloat16"}, 2 * 2 * 250_000 + 2 * 8),
        ({"weights_buffers": 5}, 5 * 4 * 250_000 + 5 * 8),
        ({"weights_staging": False}, 4 * 250_000 + 8),
        ({"lora": {"rank": 8}}, 4 * 250_000 + 8),
        ({"weights_transport": "checkpoint"}, 0),
    ],
)
def test_room_for_the_staging_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], needed: int
) -> None:
    save_file(
        {"a": torch.zeros(500, 500, dtype=torch.float16), "b": torch.zeros(1, dtype=torch.int64)},
        tmp_path / "x.safetensors",
    )
    learner = {
        "weights_transport": "shm",
        "weights_buffers": 2,
        "weights_staging": True,
        "weights_dtype": None,
        **settings,
    }

    def problems(free: int) -> list[str]:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        return [str(problem) for problem in check_shared_memory({"learner": learner}, tmp_path, tmp_path)]

    assert problems(needed) == []
    if needed:
        (problem,) = problems(needed - 1)
        assert "weights.num_buffers" in problem
        assert f"the {needed - 1:,} bytes that {tmp_path} has free" in problem
