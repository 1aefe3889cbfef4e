"""Whether a model folder can be loaded, without loading it: config, tokenizer, and that the weights are all there.

Reads a few kilobytes of the weights (their header says how long the file must be). Called by the sources of models
that somebody else wrote, and by the preflight.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.actors.learner.weight_files import check_weight_files

_REMEDY = "copy or download the model again"


def check_model_folder(folder: Path) -> None:
    """Raises ValueError naming the file and what is wrong with it."""
    _read_json(folder / "config.json")
    try:
        check_weight_files(folder)
    except ValueError as error:
        raise ValueError(f"{error}; {_REMEDY}") from error
    for path in sorted(folder.glob("tokenizer*.json")):
        _read_json(path)
    _check_with_transformers(folder)


def context_positions(folder: Path) -> int | None:
    """How many tokens the model has positions for; None where its config does not say, or a scheme stretches them."""
    config = _read_json(folder / "config.json")
    nested = config.get("text_config")
    config = {**(nested if isinstance(nested, dict) else {}), **config}
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = (rope.get("rope_type") or rope.get("type") or "default") if isinstance(rope, dict) else "default"
    positions = config.get("max_position_embeddings")
    return positions if isinstance(positions, int) and kind in ("default", "llama3") else None


def _check_with_transformers(folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    for what, loader in (("config.json", AutoConfig), ("tokenizer", AutoTokenizer)):
        try:
            loader.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the libraries below raise what they like, bare Exception among it
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"transformers cannot load the {what} of {folder}: {first}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, f"no JSON ({error})") from error
    if not isinstance(loaded, dict):
        raise _damaged(path, "it does not hold a JSON object")
    return loaded


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}; {_REMEDY}")
