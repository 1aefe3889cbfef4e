"""Atomic checkpoints: a folder that plain transformers loads, plus one file with everything else a resume needs.

    checkpoints/
      step-000040/                  complete, by construction: it got its name by one rename, after fsync
        config.json, model.safetensors, tokenizer files
        trainer.pt                  optimizer, random generators, running statistics, how far the stage is, …
        optimizer/                  of a learner of several ranks: the optimizer's tensors, a file of each rank
        checkpoint.json             step, version and the step that the version holds
      reference/                    the weights with which the `rl` stage began, where a KL penalty needs them
      base/                         with adapters: what they go upon, or a link to the run's model folder; a step's
                                    folder then holds adapter_model.safetensors in place of a model
      latest -> step-000040         replaced by one rename; never points to anything partial
      best -> step-000020           the one that evaluations found best; it stays beside the last ones
      pretrain/, sft/               the last checkpoint of such a stage, in the same format
      scores.jsonl                  what they found (checkpoint_scores.py)
      .partial-…                    being written; removed at the next start

Called by the learner in its worker thread, and by the export (reading only).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.actors.learner.checkpoint_scores import CheckpointScores
from headrace.transport.durable import sync

_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL = ".partial-"
_DOOMED = ".doomed-"
_WEIGHTS = re.compile(r".*\.(safetensors|bin|pt|gguf|index\.json)")
LATEST = "latest"
BEST = "best"
REFERENCE = "reference"
BASE = "base"
SHARDS = "optimizer"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """step: optimizer steps done. version: the last one published; version_step: the step that it holds. The weights of
    the folder are those of `version` where version_step == step."""

    step: int
    version: int
    version_step: int


class CheckpointStore:
    """One learner's checkpoints. `keep_last` complete ones stay, and the best; `model_folder` gives the tokenizer's
    files. One thread at a time.

    after: called with the name of each stage of `save` when it is done: created, weights, state, synced, renamed,
    latest.
    """

    def __init__(
        self, root: Path, *, model_folder: Path, keep_last: int = 2, after: Callable[[str], None] = lambda stage: None
    ) -> None:
        if keep_last < 1:
            raise ValueError(f"checkpoint_keep_last must be >= 1, got {keep_last}; the newest one always stays")
        self.root = root
        self._model_folder = model_folder
        self._keep_last = keep_last
        self._after = after
        self._scores = CheckpointScores(root / "scores.jsonl")
        self._saved_steps = [_step_of(folder) for folder in list_checkpoints(root)]

    def beside(self, name: str) -> CheckpointStore:
        """Of another stage, in a folder of this one's: only its last checkpoint stays."""
        return CheckpointStore(self.root / name, model_folder=self._model_folder, keep_last=1)

    def clean(self) -> None:
        """Remove what an interrupted save or removal left behind. To be called before the first save."""
        if not self.root.is_dir():
            return
        for path in self.root.iterdir():
            if path.name.startswith((_PARTIAL, _DOOMED)):
                _remove(path)

    def partial(self, info: CheckpointInfo) -> Path:
        """A name of a folder to write that checkpoint in, until it is whole."""
        return self.root / f"{_PARTIAL}{info.step:06d}-{secrets.token_hex(4)}"

    def save(
        self,
        info: CheckpointInfo,
        model: Any,
        state: dict[str, Any],
        *,
        partial: Path | None = None,
        shards: Callable[[Path], None] = lambda folder: None,
    ) -> Path:
        """Write one checkpoint and make it the latest. `model` has save_pretrained. `shards` writes, before all else,
        what other ranks write with it in the folder SHARDS of `partial`. Where anything fails (a full disk), what was
        written of it is removed, and those before it are as they were."""
        self.root.mkdir(parents=True, exist_ok=True)
        partial = partial or self.partial(info)
        try:
            shards(partial / SHARDS)
            self._write(partial, info, model, state)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        final = self.root / f"step-{info.step:06d}"
        if final.exists():  # the same step again, after a resume: the older one moves out of the way first
            os.replace(final, self.root / f"{_DOOMED}{final.name}-{secrets.token_hex(4)}")
        os.replace(partial, final)
        sync(self.root)
        self._saved_steps.append(info.step)
        self._after("renamed")
        self._point(LATEST, final.name)
        self._after("latest")
        self._remove_old()
        return final

    def _write(self, partial: Path, info: CheckpointInfo, model: Any, state: dict[str, Any]) -> None:
        import torch

        partial.mkdir(exist_ok=True)
        self._after("created")
        copy_tokenizer(self._model_folder, partial)
        model.save_pretrained(partial)
        self._after("weights")
        torch.save(state, partial / "trainer.pt")
        (partial / "checkpoint.json").write_text(json.dumps(asdict(info)), encoding="utf-8")
        self._after("state")
        _sync_tree(partial)
        self._after("synced")

    def evaluated(self, step: int, score: float) -> None:
        """An evaluation of the weights after `step` found `score`: `best` may be another checkpoint now."""
        self._scores.add(step, score, checkpoints=self._saved_steps)
        best = self._best()
        if best is not None:
            self._point(BEST, best.name)

    def _best(self) -> Path | None:
        found = {_step_of(folder): folder for folder in list_checkpoints(self.root)}
        step = self._scores.best(found)
        return None if step is None else found[step]

    def reference(self, model: Any) -> Path:
        """The folder of the weights that `rl` began with: written from `model` the first time, kept from then on."""
        final = self.root / REFERENCE
        if not final.exists():
            partial = self.root / f"{_PARTIAL}{REFERENCE}-{secrets.token_hex(4)}"
            model.save_pretrained(partial)
            _sync_tree(partial)
            os.replace(partial, final)
            sync(self.root)
        return final

    @property
    def base(self) -> Path:
        """Where the frozen weights below adapters are, once they were kept."""
        return self.root / BASE

    @property
    def base_is_own(self) -> bool:
        """Whether they are other weights than those of the model folder."""
        return self.base.exists() and not self.base.is_symlink()

    def keep_base(self, model: Any | None) -> Path:
        """Write `model`, which has save_pretrained, as the base of this run's adapters; None: it is the model folder's.
        Replaces what an earlier life that came to no checkpoint left."""
        self.root.mkdir(parents=True, exist_ok=True)
        partial = self.root / f"{_PARTIAL}{BASE}-{secrets.token_hex(4)}"
        if model is None:
            partial.symlink_to(os.path.relpath(self._model_folder, self.root), target_is_directory=True)
        else:
            partial.mkdir()
            copy_tokenizer(self._model_folder, partial)
            model.save_pretrained(partial)
            _sync_tree(partial)
        if self.base.exists() or self.base.is_symlink():
            doomed = self.root / f"{_DOOMED}{BASE}-{secrets.token_hex(4)}"
            os.replace(self.base, doomed)
            _remove(doomed)
        os.replace(partial, self.base)
        sync(self.root)
        return self.base

    def latest(self) -> Path | None:
        """The newest complete checkpoint, or None. Goes by the folders, since `latest` may be one save behind."""
        found = list_checkpoints(self.root)
        return found[-1] if found else None

    def load_state(self, folder: Path) -> tuple[CheckpointInfo, dict[str, Any]]:
        """What `save` was given, but for the model, which transformers loads from the folder. Raises ValueError naming
        the file that is damaged."""
        import torch

        path = folder / "trainer.pt"
        try:
            # Plain containers, numbers and tensors only: nothing in the file can run code.
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises what it likes, and never says which file it was
            raise ValueError(
                f"{path} is damaged or missing: {_first_line(error)}; remove {folder} and the run goes on from the "
                "checkpoint before it"
            ) from error
        return read_info(folder), state

    def _point(self, what: str, name: str) -> None:
        link = self.root / f"{_PARTIAL}link-{secrets.token_hex(4)}"
        link.symlink_to(name)
        os.replace(link, self.root / what)
        sync(self.root)

    def _remove_old(self) -> None:
        best = self._best()
        for folder in list_checkpoints(self.root)[: -self._keep_last]:
            if folder == best:
                continue
            # Renamed first: a half-removed folder must not look like a checkpoint.
            doomed = self.root / f"{_DOOMED}{folder.name}-{secrets.token_hex(4)}"
            os.replace(folder, doomed)
            _remove(doomed)
        for path in self.root.glob(f"{_DOOMED}*"):
            _remove(path)


def list_checkpoints(root: Path) -> list[Path]:
    """The complete checkpoints below `root`, oldest first."""
    if not root.is_dir():
        return []
    numbered = [(int(match[1]), path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def _step_of(folder: Path) -> int:
    match = _NAME.fullmatch(folder.name)
    assert match is not None, "list_checkpoints gives no other names"
    return int(match[1])


def read_info(folder: Path) -> CheckpointInfo:
    """Raises ValueError where the folder is no checkpoint of this format."""
    path = folder / "checkpoint.json"
    try:
        info = CheckpointInfo(**json.loads(path.read_text(encoding="utf-8")))
        if not all(isinstance(value, int) for value in asdict(info).values()):
            raise TypeError(f"step, version and version_step must be whole numbers, got {info}")
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged or missing: {_first_line(error)}") from error
    return info


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy every file of a model folder but its weights and config.json (which the model itself writes)."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in ("config.json", "checkpoint.json") and not _WEIGHTS.fullmatch(path.name):
            shutil.copyfile(path, target / path.name)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            sync(path)
    sync(folder)
