"""The weights of a run's checkpoint as a model: any step, whole or merged, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headrace.actors.learner.checkpoint import CheckpointInfo, CheckpointStore
from headrace.launch.models import RunCheckpoint, ScratchLlama


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints of steps 2 and 4, which differ in every weight."""
    from transformers import AutoModelForCausalLM

    size = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "head_dim": 16, "intermediate_size": 32}
    folder = ScratchLlama(**size, max_positions=32).prepare(tmp_path / "run" / "model", seed=0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", model_folder=folder, keep_last=9)
    for step in (2, 4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        store.save(CheckpointInfo(step, step + 1, step), model, {})
    return tmp_path / "run"


@pytest.mark.parametrize(("step", "holds"), [(None, 4.0), (4, 4.0), (2, 2.0)])
def test_a_folder_that_plain_transformers_loads(run: Path, tmp_path: Path, step: int | None, holds: float) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = RunCheckpoint(run=str(run), step=step).prepare(tmp_path / "model", seed=0)
    assert all((tensor == holds).all() for tensor in load_file(folder / "model.safetensors").values())
    assert next(AutoModelForCausalLM.from_pretrained(folder).parameters()).flatten()[0] == holds
    assert AutoTokenizer.from_pretrained(folder).encode("a")
    assert not (folder / "trainer.pt").exists()


def test_what_is_not_there_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds step 3; there are steps \[2, 4\]"):
        RunCheckpoint(run=str(run), step=3).prepare(tmp_path / "model", seed=0)
    with pytest.raises(ValueError, match="holds no complete checkpoint"):
        RunCheckpoint(run=str(tmp_path)).prepare(tmp_path / "model", seed=0)
    with pytest.raises(ValueError, match=r"model.run must not be empty"):
        RunCheckpoint(run="")
