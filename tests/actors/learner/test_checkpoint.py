"""Checkpoints are whole or absent; a resumed optimizer goes on as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.checkpoint import CheckpointInfo, CheckpointStore, list_checkpoints, read_info
from headrace.actors.learner.export import export_checkpoint
from headrace.actors.learner.objectives import CrossEntropy
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.trainer import Trainer

CHILD = Path(__file__).parent / "save_then_die.py"


@pytest.mark.parametrize(
    ("fatal_stage", "survivor"),
    [("created", 1), ("weights", 1), ("state", 1), ("synced", 1), ("renamed", 2), ("latest", 2)],
)
def test_a_kill_at_any_stage_leaves_a_whole_checkpoint(tmp_path, fatal_stage, survivor):
    """cases J130: SIGKILL at each stage of save; what `latest` points to is whole, leftovers are cleaned."""
    model_folder = tmp_path / "model"
    model_folder.mkdir()
    root = tmp_path / "checkpoints"
    child = subprocess.run(
        [sys.executable, str(CHILD), str(root), str(model_folder), fatal_stage], capture_output=True, text=True
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    pointed = (root / "latest").resolve()
    assert torch.load(pointed / "weights.bin").tolist() == [float(read_info(pointed).step)] * 1000

    store = CheckpointStore(root, model_folder=model_folder, keep_last=1)
    store.clean()
    newest = store.latest()
    assert newest is not None
    info, state = store.load_state(newest)
    assert info.step == state["step"] == survivor
    assert torch.load(newest / "weights.bin").tolist() == [float(survivor)] * 1000
    assert not [p for p in root.iterdir() if p.name.startswith(".")]


def make_trainer(folder: Path) -> Trainer:
    policy = Policy.load(folder)
    optimizer = Optimizer(policy.model.parameters(), AdamSettings())
    return Trainer(policy, optimizer, objective=CrossEntropy(), aggregation=TokenMean(), packing=PackingSettings())


def test_five_steps_and_five_resumed_equal_ten(tmp_path, model_folder, make_sequence):
    """cases J127: moments and step count of the optimizer survive bit for bit."""
    batches = [[make_sequence(10 * step + i) for i in range(4)] for step in range(10)]
    straight = make_trainer(model_folder)
    for batch in batches:
        straight.step(batch, 1e-3)

    first = make_trainer(model_folder)
    for batch in batches[:5]:
        first.step(batch, 1e-3)
    store = CheckpointStore(tmp_path, model_folder=model_folder)
    folder = store.save(CheckpointInfo(5, 3, 5), first.policy.model, {"optimizer": first.optimizer.state_dict()})
    second = make_trainer(folder)
    second.optimizer.load_state_dict(store.load_state(folder)[1]["optimizer"])
    for batch in batches[5:]:
        second.step(batch, 1e-3)
    for a, b in zip(straight.policy.model.parameters(), second.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)


def save(root: Path, model_folder: Path, step: int, *, version_step: int | None = None, keep_last: int = 5) -> Path:
    store = CheckpointStore(root, model_folder=model_folder, keep_last=keep_last)
    model = Policy.load(model_folder).model
    info = CheckpointInfo(step, step + 1, step if version_step is None else version_step)
    return store.save(info, model, {})


def test_keeps_the_last_ones(tmp_path, model_folder):
    for step in (1, 2, 10):
        save(tmp_path, model_folder, step, keep_last=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-000002", "step-000010"]
    assert (tmp_path / "latest").resolve().name == "step-000010"


def test_the_same_step_can_be_saved_again(tmp_path, model_folder):
    save(tmp_path, model_folder, 1)
    save(tmp_path, model_folder, 1, version_step=0)
    assert [read_info(p).version_step for p in list_checkpoints(tmp_path)] == [0]


def test_an_export_is_what_plain_transformers_loads(tmp_path, model_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save(tmp_path / "c", model_folder, 1)
    save(tmp_path / "c", model_folder, 2)
    export_checkpoint(tmp_path / "c", tmp_path / "out", version=2, dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("1,2") == (
        AutoTokenizer.from_pretrained(model_folder).encode("1,2")
    )
    assert not (tmp_path / "out" / "trainer.pt").exists()


def test_an_export_names_the_versions_there_are(tmp_path, model_folder):
    save(tmp_path / "c", model_folder, 1)
    save(tmp_path / "c", model_folder, 2, version_step=1)  # a checkpoint between two publications
    with pytest.raises(ValueError, match=r"there are versions \[2\]"):
        export_checkpoint(tmp_path / "c", tmp_path / "out", version=3)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        export_checkpoint(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        export_checkpoint(tmp_path / "c", tmp_path / "out")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 100)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda path: cut(path, 500)),
        ("model.safetensors", lambda path: cut(path, path.stat().st_size - 1)),
        ("model.safetensors", lambda path: cut(path, 0)),
        ("model.safetensors", lengthen),
        ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 4096)),
        ("model.safetensors", lambda path: path.unlink()),
        ("config.json", lambda path: cut(path, 20)),
        ("config.json", lambda path: path.unlink()),
        ("tokenizer.json", lambda path: path.write_text("{")),
        ("checkpoint.json", lambda path: path.write_bytes(b"\xff\xfe{")),
        ("checkpoint.json", lambda path: path.write_text('{"step": "one", "version": 2, "version_step": 1}')),
        ("checkpoint.json", lambda path: path.write_text("[]")),
    ],
)
def test_a_damaged_checkpoint_is_not_exported(tmp_path, model_folder, name, damage):
    """Nothing is written, and the message names the file."""
    damage(save(tmp_path / "c", model_folder, 1) / name)
    with pytest.raises(ValueError, match=r"step-000001") as raised:
        export_checkpoint(tmp_path / "c", tmp_path / "out", version=2)
    assert name in str(raised.value) or "holds no weights" in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("target", ["folder", "file", "file/below/it", "link"])
def test_an_export_never_overwrites(tmp_path, model_folder, target):
    save(tmp_path / "c", model_folder, 1)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="name a folder that does not exist yet"):
        export_checkpoint(tmp_path / "c", tmp_path / target)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_resume_cannot_read_is_named(tmp_path, model_folder):
    store = CheckpointStore(tmp_path, model_folder=model_folder)
    folder = save(tmp_path, model_folder, 1)
    for damage in (lambda path: cut(path, 100), lambda path: path.write_text("x"), lambda path: path.unlink()):
        damage(folder / "trainer.pt")
        with pytest.raises(ValueError, match=r"step-000001/trainer.pt is damaged or missing: .*; remove "):
            store.load_state(folder)
    cut(folder / "model.safetensors", 500)
    with pytest.raises(ValueError, match=r"step-000001/model.safetensors is damaged"):
        Policy.load(folder)
