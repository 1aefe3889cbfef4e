"""metrics.jsonl: every record as it came, one line each, keyed by the sender's own counter. Never merges, sorts or
drops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TextIO

from headrace.actors.messages import Metrics
from headrace.transport.durable import cut_half_line

_TAIL_BYTES = 1 << 16


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


def last_time_s(path: Path) -> float:
    """The time of the newest record that can be read, from which a monitor that is started again goes on; 0 without
    any."""
    if not path.is_file():
        return 0.0
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            return float(json.loads(line)["time_s"])
        except (KeyError, TypeError, ValueError):  # the last line of a run that was killed may be half a line
            continue
    return 0.0


class MetricsFile:
    """Appends; a restarted monitor goes on in the same file. Lines reach the disk at `flush`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_half_line(path)
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open for the actor's life)

    def write(self, record: Metrics, *, time_s: float) -> None:
        self._file.write(metrics_line(record, time_s=time_s) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
