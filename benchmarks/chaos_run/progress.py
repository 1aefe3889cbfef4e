"""How far a run is, from its folder: the learner's own record of steps, and what the monitor has written of
pre-training. Never waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos_run.plan import Phase, Position

_TAIL_BYTES = 16_384


def read_position(folder: Path) -> Position:
    """Of a run in whose folder nothing may be written yet."""
    trained = _last_records(folder / "trained.jsonl")
    if trained:
        return Position(Phase.TRAINING, int(trained[-1]["step"]))
    pretrained = [record for record in _last_records(folder / "metrics.jsonl") if record.get("stream") == "pretrain"]
    if pretrained:
        return Position(Phase.PRETRAINING, int(pretrained[-1]["step"]))
    return Position(Phase.STARTING, 0)


def _last_records(path: Path) -> list[dict[str, Any]]:
    """The whole lines in the last bytes of a file of JSON lines that grows."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[1 if start else 0 : -1]]
