"""Checkpoints that are written beside training: copies, failures of the disk, what is kept, what else they hold."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.learner.checkpoint import CheckpointInfo, CheckpointStore, list_checkpoints
from headrace.actors.learner.checkpoint_copy import ModelCopy, copied
from headrace.actors.learner.checkpoint_scores import CheckpointScores
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.random_state import random_state, set_random_state


class Saves:
    """A model of nothing."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"weights")


def store_of(root: Path, **options: Any) -> CheckpointStore:
    (root / "model").mkdir(exist_ok=True)
    return CheckpointStore(root / "checkpoints", model_folder=root / "model", **options)


def save(store: CheckpointStore, step: int) -> None:
    store.save(CheckpointInfo(step, step, step), Saves(), {})


def names(root: Path) -> list[str]:
    return [path.name for path in list_checkpoints(root / "checkpoints")]


def test_a_copy_is_written_as_the_model_was(tmp_path: Path, model_folder: Path) -> None:
    """Also after the model has gone on."""
    model = Policy.load(model_folder).model
    (tmp_path / "then").mkdir()
    (tmp_path / "copy").mkdir()
    model.save_pretrained(tmp_path / "then")
    copy = ModelCopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    copy.save_pretrained(tmp_path / "copy")
    for path in (tmp_path / "then").iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_copy_shares_nothing_but_what_was_one_tensor_stays_one() -> None:
    weight = torch.arange(4.0)
    tree = {"a": weight, "b": [weight, (weight[1:], 7)], "view": weight.view(2, 2)}
    copy = copied(tree)
    weight.zero_()
    assert copy["a"].tolist() == [0, 1, 2, 3]
    assert copy["a"] is copy["b"][0]
    assert copy["b"][1][0].tolist() == [1, 2, 3]
    assert copy["b"][1][1] == 7
    assert copy["view"].tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("stage", ["created", "weights", "state", "synced"])
def test_a_full_disk_leaves_the_checkpoint_before_and_takes_no_room(tmp_path: Path, stage: str) -> None:
    save(store_of(tmp_path), 1)

    def full(now: str) -> None:
        if now == stage:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = store_of(tmp_path, after=full)
    with pytest.raises(OSError, match="No space left"):
        save(store, 2)
    assert names(tmp_path) == ["step-000001"]
    assert (tmp_path / "checkpoints" / "latest").resolve().name == "step-000001"
    assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")]
    save(store_of(tmp_path), 3)
    assert names(tmp_path) == ["step-000001", "step-000003"]


def test_the_best_stays_beside_the_last(tmp_path: Path) -> None:
    store = store_of(tmp_path, keep_last=2)
    best = tmp_path / "checkpoints" / "best"
    for step, score in ((10, 0.2), (20, 0.7), (30, 0.5), (40, 0.6)):
        save(store, step)
        store.evaluated(step + 1, score)
        assert best.resolve().name == ("step-000010" if step == 10 else "step-000020")
    assert names(tmp_path) == ["step-000020", "step-000030", "step-000040"]
    again = store_of(tmp_path, keep_last=2)
    save(again, 50)
    assert names(tmp_path) == ["step-000020", "step-000040", "step-000050"]
    again.evaluated(50, 0.9)
    save(again, 60)
    assert names(tmp_path) == ["step-000050", "step-000060"]
    assert best.resolve().name == "step-000050"


def test_a_score_goes_to_the_checkpoint_that_came_before_it(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    scores = CheckpointScores(path)
    scores.add(5, 0.9, checkpoints=[10])  # older than all of them
    scores.add(12, float("nan"), checkpoints=[10])
    assert scores.best([10]) is None
    scores.add(19, 0.5, checkpoints=[10, 20])
    scores.add(20, 0.5, checkpoints=[10, 20])
    assert scores.best([10, 20]) == 20, "the later one of equals"
    assert scores.best([10]) == 10
    with open(path, "a") as lines:
        lines.write('{"checkpoint": 10, "sco')
    assert CheckpointScores(path).best([10, 20, 30]) == 20
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()[:2]] == [19, 20]
    CheckpointScores(path).add(30, 0.9, checkpoints=[10, 20, 30])
    assert CheckpointScores(path).best([10, 20, 30]) == 30, "nothing is joined to half a line"


def test_every_random_generator_goes_on(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))]

    draw()
    torch.save(random_state(), tmp_path / "state.pt")
    expected = [draw(), draw()]
    set_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert [draw(), draw()] == expected
