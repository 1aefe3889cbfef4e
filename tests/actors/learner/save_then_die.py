"""A child for test_checkpoint: saves one good checkpoint, then is killed by itself at a given stage of the next."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from headrace.actors.learner.checkpoint import CheckpointInfo, CheckpointStore


class Weights:
    def __init__(self, value: float) -> None:
        self.value = value

    def save_pretrained(self, folder: Path) -> None:
        torch.save(torch.full((1000,), self.value), folder / "weights.bin")
        (folder / "config.json").write_text("{}")


def main(root: str, model_folder: str, fatal_stage: str) -> None:
    store = CheckpointStore(Path(root), model_folder=Path(model_folder), keep_last=1)
    store.save(CheckpointInfo(1, 1, 1), Weights(1.0), {"step": 1})

    def die(stage: str) -> None:
        if stage == fatal_stage:
            os.kill(os.getpid(), signal.SIGKILL)

    store = CheckpointStore(Path(root), model_folder=Path(model_folder), keep_last=1, after=die)
    store.save(CheckpointInfo(2, 2, 2), Weights(2.0), {"step": 2})


if __name__ == "__main__":
    main(*sys.argv[1:])
