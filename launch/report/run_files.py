"""Reads a run folder, whatever state it is in: a run that was killed half-way has no end, and maybe half a last line.

Never writes. A file that is not there is empty; a line that cannot be read is skipped and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.launch.run_folder import read_config


@dataclass(frozen=True, slots=True)
class MetricsRecord:
    """One line of metrics.jsonl: `values` at `step` of the sender's counter `step_name`, `time_s` seconds after the
    monitor started."""

    time_s: float
    stream: str
    step_name: str
    step: float
    values: dict[str, float]


@dataclass
class RunFiles:
    folder: Path
    num_unreadable_lines: int = 0
    _streams: dict[str, list[MetricsRecord]] | None = field(default=None, repr=False)

    def stream(self, name: str) -> list[MetricsRecord]:
        """The records of one stream in the order in which they came."""
        if self._streams is None:
            self._streams = {}
            for line in self._lines(self.folder / "metrics.jsonl"):
                record = _metrics_record(line)
                if record is None:
                    self.num_unreadable_lines += 1
                else:
                    self._streams.setdefault(record.stream, []).append(record)
        return self._streams.get(name, [])

    @property
    def last_time_s(self) -> float:
        """Seconds from the monitor's start to its last record; 0 without any."""
        self.stream("")
        return max((records[-1].time_s for records in (self._streams or {}).values()), default=0.0)

    @cached_property
    def ledger(self) -> list[dict[str, Any]]:
        """ledger.jsonl: a line for each training session that ended."""
        return list(self._lines(self.folder / "ledger.jsonl"))

    def trajectories(self) -> Iterator[dict[str, Any]]:
        """Every record of every grader's shard, one at a time: shards may be larger than the memory."""
        for shard in sorted((self.folder / "trajectories").glob("*.jsonl")):
            yield from self._lines(shard)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Raises ValueError, naming the file, where it is damaged: without it a run cannot be told."""
        return read_config(self.folder) if (self.folder / "config.yaml").is_file() else {}

    @cached_property
    def activity(self) -> dict[str, Any]:
        return self._json("activity.json")

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return self._json("provenance.json")

    @cached_property
    def outcome(self) -> dict[str, Any]:
        """outcome.json, written by the launcher at the end; empty where it was killed."""
        return self._json("outcome.json")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            loaded = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        if not path.is_file():
            return
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    loaded = json.loads(line)
                except json.JSONDecodeError:
                    loaded = None
                if isinstance(loaded, dict):
                    yield loaded
                elif line.strip():
                    self.num_unreadable_lines += 1


def _metrics_record(line: dict[str, Any]) -> MetricsRecord | None:
    try:
        values = {name: float(value) for name, value in line["values"].items() if value is not None}
        return MetricsRecord(
            float(line["time_s"]), str(line["stream"]), str(line["step_name"]), float(line["step"]), values
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
