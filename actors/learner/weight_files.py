"""Whether the weight files of a model folder are whole, without reading the weights: their headers say how long they
must be. Called before a checkpoint is resumed from or exported, and by the launcher for a model that somebody gives.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_INDEX = "model.safetensors.index.json"
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def check_weight_files(folder: Path) -> None:
    """Every safetensors file of the folder, and those that its index names. Raises ValueError naming the file and what
    is wrong with it; OSError where one cannot be read."""
    index = folder / _INDEX
    if index.is_file():
        for name in _shards(index):
            if not (folder / name).is_file():
                raise ValueError(f"{folder / name} is missing ({_INDEX} names it)")
    for path in sorted(folder.glob("*.safetensors")):
        problem = _problem(path)
        if problem is not None:
            raise ValueError(f"{path} is damaged: {problem}")


def _shards(index: Path) -> list[str]:
    try:
        shards = {str(shard) for shard in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{index} is damaged: it has no weight_map ({type(error).__name__}: {error})") from error
    if not shards:
        raise ValueError(f"{index} is damaged: its weight_map is empty")
    return sorted(shards)


def _problem(path: Path) -> str | None:
    size = path.stat().st_size
    try:
        length, tensors = _header(path, size)
        end = max(int(entry["data_offsets"][1]) for entry in tensors.values())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        return (
            str(error)
            if isinstance(error, _NoHeader)
            else f"its header cannot be read ({type(error).__name__}: {error})"
        )
    if size != 8 + length + end:
        return f"it has {size} bytes, and its header says {8 + length + end}"
    return None


class _NoHeader(ValueError):
    pass


def _header(path: Path, size: int) -> tuple[int, dict[str, Any]]:
    """Of a safetensors file: the header's length (which its first 8 bytes give) and, for each tensor, what it says (the
    data follow, up to the last offset)."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise _NoHeader(f"its {size} bytes are too few for its header, or hold none")
        header = json.loads(file.read(length))
    return length, {name: entry for name, entry in header.items() if name != "__metadata__"}


def weight_bytes(folder: Path, *, float_bytes: int) -> int:
    """What the weights of a folder take where each of their floating-point numbers has so many bytes (tied ones, of
    which files hold one, are counted once). 0 where there is no safetensors file. Raises ValueError, OSError."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        for entry in _header(path, path.stat().st_size)[1].values():
            nbytes = int(entry["data_offsets"][1]) - int(entry["data_offsets"][0])
            width = _FLOAT_BYTES.get(str(entry["dtype"]))
            total += nbytes if width is None else nbytes // width * float_bytes
    return total
