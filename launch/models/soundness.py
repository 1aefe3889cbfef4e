"""Whether a model folder can be loaded, without loading it: config, tokenizer, and that the weights are all there.

Reads a few kilobytes of the weights (their header says how long the file must be). Called by the sources of models
that somebody else wrote, and by the preflight.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000  # the format's own limit


def check_model_folder(folder: Path) -> None:
    """Raises ValueError naming the file and what is wrong with it."""
    _read_json(folder / "config.json")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise _damaged(index, "it has no weight_map")
        for name in sorted({str(shard) for shard in shards.values()}):
            if not (folder / name).is_file():
                raise ValueError(
                    f"{folder / name} is missing ({index.name} names it); copy or download the model again"
                )
    for path in sorted(folder.glob("*.safetensors")):
        _check_weights(path)
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


def _check_weights(path: Path) -> None:
    """A safetensors file: the header's length in 8 bytes, the header in JSON, then the data up to its last offset."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise _damaged(path, f"its {size} bytes are too few for its header, or hold none")
        header = file.read(length)
    try:
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        end = max(int(entry["data_offsets"][1]) for entry in tensors.values())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _damaged(path, f"its header cannot be read ({type(error).__name__}: {error})") from error
    if size != 8 + length + end:
        raise _damaged(path, f"it has {size} bytes, and its header says {8 + length + end}")


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
    return ValueError(f"{path} is damaged: {why}; copy or download the model again")
