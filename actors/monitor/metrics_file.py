"""metrics.jsonl: every record as it came, one line each, keyed by the sender's own counter. Never merges, sorts or
drops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TextIO

from headrace.actors.messages import Metrics


def metrics_line(record: Metrics, *, time_s: float) -> str:
    """`time_s`: seconds since the monitor started. Values that are not finite become null: JSON has no form for
    them."""
    values = {name: value if math.isfinite(value) else None for name, value in record.values.items()}
    line = {
        "time_s": round(time_s, 3),
        "stream": record.stream,
        "step_name": record.step_name,
        "step": record.step,
        "values": values,
    }
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


class MetricsFile:
    """Appends; a restarted monitor goes on in the same file. Lines reach the disk at `flush`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open for the actor's life)

    def write(self, record: Metrics, *, time_s: float) -> None:
        self._file.write(metrics_line(record, time_s=time_s) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
