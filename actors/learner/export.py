"""From a run's checkpoints to a Hugging Face folder that plain transformers loads. Called by `headrace export`.

A checkpoint of adapters becomes a plain model too, with the adapters merged into its weights.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path

from headrace.actors.learner.checkpoint import BASE, copy_tokenizer, list_checkpoints, read_info
from headrace.actors.learner.weight_files import check_weight_files

_NOT_EXPORTED = ("trainer.pt", "checkpoint.json")
_ADAPTER_CONFIG = "adapter_config.json"
DTYPES = ("float32", "bfloat16", "float16")


def export_checkpoint(
    checkpoints: Path,
    target: Path,
    *,
    version: int | None = None,
    step: int | None = None,
    dtype: str | None = None,
    merge: bool = True,
) -> Path:
    """Copy a checkpoint's model and tokenizer to `target`, which must not exist yet; returns the checkpoint used.

    version, step: see find_checkpoint. dtype: converts the weights; None keeps float32 masters.
    merge: False leaves adapters as they are (float32), a folder that PEFT and vLLM load beside their base.
    Raises ValueError naming the versions there are, or the damaged file of the checkpoint; OSError where `target`
    exists or cannot be made.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} exists; export never overwrites, name a folder that does not exist yet")
    above = next(parent for parent in target.absolute().parents if parent.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{target} cannot be made: {above} is a file; name a folder that does not exist yet")
    source = find_checkpoint(checkpoints, version=version, step=step)
    _check(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}-{secrets.token_hex(4)}"
    try:
        if merge and (source / _ADAPTER_CONFIG).exists():
            _merge(source, checkpoints / BASE, partial)
        else:
            shutil.copytree(source, partial, ignore=shutil.ignore_patterns(*_NOT_EXPORTED))
        if dtype is not None and (partial / "config.json").exists():
            _convert(partial, dtype)
        os.replace(partial, target)
    except shutil.Error as error:
        _, _, why = error.args[0][0]  # of the first file that could not be copied
        raise OSError(f"{target} cannot be written: {why}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return source


def find_checkpoint(checkpoints: Path, *, version: int | None = None, step: int | None = None) -> Path:
    """The one whose weights are that version, or of that step; without either the newest. Raises ValueError naming
    those that there are."""
    folders = list_checkpoints(checkpoints)
    if not folders:
        raise ValueError(f"{checkpoints} holds no complete checkpoint; has the run reached its first one?")
    wanted = step if version is None else version
    if wanted is None:
        return folders[-1]
    infos = {folder: read_info(folder) for folder in folders}
    if version is not None:
        what = "version"
        there = {info.version: folder for folder, info in infos.items() if info.version_step == info.step}
    else:
        what = "step"
        there = {info.step: folder for folder, info in infos.items()}
    if wanted not in there:
        raise ValueError(
            f"no checkpoint of {checkpoints} holds {what} {wanted}; there are {what}s {sorted(there)} "
            "(set learner.checkpoint_every_steps and checkpoint_keep_last to keep more)"
        )
    return there[wanted]


def _check(checkpoint: Path) -> None:
    """Raises ValueError where a file that is to be copied is damaged: better no export than one that does not load."""
    if not any(checkpoint.glob("*.safetensors")):
        raise ValueError(f"{checkpoint} holds no weights (*.safetensors); export another version")
    check_weight_files(checkpoint)
    for path in sorted(checkpoint.glob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: it is no JSON ({error}); export another version") from error
    if not (checkpoint / "config.json").is_file() and not (checkpoint / _ADAPTER_CONFIG).is_file():
        raise ValueError(f"{checkpoint / 'config.json'} is missing; export another version")


def _merge(adapter: Path, base: Path, target: Path) -> None:
    """Raises ValueError where the base is gone or damaged."""
    from headrace.actors.learner.adapters import merged  # imports torch and PEFT

    if not base.is_dir():
        raise ValueError(
            f"{base} is missing, which the adapters of {adapter} go upon; has the run folder been moved apart?"
        )
    check_weight_files(base)
    target.mkdir()
    copy_tokenizer(adapter, target)
    (target / _ADAPTER_CONFIG).unlink()
    merged(base, adapter).save_pretrained(target)


def _convert(folder: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    model.save_pretrained(folder)
