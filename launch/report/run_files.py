"""Reads a run folder, whatever state it is in: a run that was killed half-way has no end, and maybe half a last line.

Never writes. A file that is not there is empty; one that cannot be read is empty too, and named in `damaged`; a line
that cannot be read is skipped and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.launch.membership import MEMBERSHIP_FILE
from headrace.launch.report.ledger_file import read_ledger
from headrace.launch.run_folder import parse_config

LEDGER = "ledger.sqlite"


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
    damaged: dict[str, str] = field(default_factory=dict)
    """file → what is wrong with it"""
    _streams: dict[str, list[MetricsRecord]] | None = field(default=None, repr=False)

    def stream(self, name: str) -> list[MetricsRecord]:
        """The records of one stream in the order in which they came."""
        return self._by_stream().get(name, [])

    def streams(self, prefix: str) -> list[MetricsRecord]:
        """Those of every stream whose name begins so."""
        return [record for name, records in self._by_stream().items() if name.startswith(prefix) for record in records]

    def _by_stream(self) -> dict[str, list[MetricsRecord]]:
        if self._streams is None:
            self._streams = {}
            for line in self._lines(self.folder / "metrics.jsonl"):
                record = _metrics_record(line)
                if record is None:
                    self.num_unreadable_lines += 1
                else:
                    self._streams.setdefault(record.stream, []).append(record)
        return self._streams

    @property
    def last_time_s(self) -> float:
        """Seconds from the monitor's start to its last record; 0 without any."""
        self.stream("")
        return max((records[-1].time_s for records in (self._streams or {}).values()), default=0.0)

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """ledger.sqlite: each training session that was issued, with its state."""
        return self._ledger[0]

    @property
    def num_issued(self) -> int:
        """How many sessions the dispatcher says it issued."""
        return self._ledger[1]

    @cached_property
    def _ledger(self) -> tuple[list[dict[str, Any]], int]:
        path = self.folder / LEDGER
        if not path.exists():
            return [], 0
        try:
            sessions, issued = read_ledger(path)
        except (ValueError, RecursionError) as error:
            self.damaged[LEDGER] = " ".join(str(error).split())
            return [], 0
        sound = [session for session in sessions if _is_session(session)]
        self.num_unreadable_lines += len(sessions) - len(sound)
        return sound, issued

    @cached_property
    def trained(self) -> list[tuple[int, str]] | None:
        """trained.jsonl: (step, session id) by the learner's own record; None where it kept none."""
        path = self.folder / "trained.jsonl"
        if not path.is_file():
            return None
        found: list[tuple[int, str]] = []
        for line in self._lines(path):
            step, session_ids = line.get("step"), line.get("session_ids")
            if isinstance(step, int) and isinstance(session_ids, list):
                found += [(step, str(session_id)) for session_id in session_ids]
            else:
                self.num_unreadable_lines += 1
        return found

    @cached_property
    def stalls(self) -> list[dict[str, Any]]:
        """stalls.jsonl: what the monitor found where nothing moved, and when it went on."""
        return list(self._lines(self.folder / "stalls.jsonl"))

    @cached_property
    def membership(self) -> list[dict[str, Any]]:
        """membership.jsonl: who joined and left after the start; the launcher wrote it."""
        return list(self._lines(self.folder / MEMBERSHIP_FILE))

    def trajectories(self) -> Iterator[dict[str, Any]]:
        """Every record of every grader's shard, one at a time: shards may be larger than the memory."""
        for shard in sorted((self.folder / "trajectories").glob("*.jsonl")):
            yield from self._lines(shard)

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._mapping("config.yaml", parse_config)

    @cached_property
    def activity(self) -> dict[str, dict[str, Any]]:
        """Of activity.json: role → `busy`, `blocked` (role → share), `idle`."""
        roles = self._mapping("activity.json", json.loads).get("roles", {})
        try:
            return {str(role): _shares(shares) for role, shares in roles.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.damaged["activity.json"] = f"its roles cannot be read ({type(error).__name__}: {error})"
            return {}

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return self._mapping("provenance.json", json.loads)

    @cached_property
    def outcome(self) -> dict[str, Any]:
        """outcome.json, written by the launcher at the end; empty where it was killed."""
        return self._mapping("outcome.json", json.loads)

    def _mapping(self, name: str, parse: Callable[[str], object]) -> dict[str, Any]:
        try:
            loaded = parse((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self.damaged[name] = " ".join(str(error).split()) or type(error).__name__
            return {}
        if not isinstance(loaded, dict):
            self.damaged[name] = f"it holds no mapping but {type(loaded).__name__}"
            return {}
        return loaded

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        if not path.is_file():
            return
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    loaded = json.loads(line)
                except (ValueError, RecursionError):
                    loaded = None
                if isinstance(loaded, dict):
                    yield loaded
                elif line.strip():
                    self.num_unreadable_lines += 1


def _metrics_record(line: dict[str, Any]) -> MetricsRecord | None:
    try:
        values = {name: float(value) for name, value in line["values"].items() if value is not None}
        record = MetricsRecord(
            float(line["time_s"]), str(line["stream"]), str(line["step_name"]), float(line["step"]), values
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return record if all(map(math.isfinite, (record.time_s, record.step, *values.values()))) else None


def _is_session(line: dict[str, Any]) -> bool:
    lags = line.get("token_lags")
    numbers = [line.get("lag"), line.get("tokens"), *(lags.values() if isinstance(lags, dict) else [])]
    return (
        isinstance(line.get("state"), str)
        and all(number is None or isinstance(number, int) for number in numbers)
        and (lags is None or (isinstance(lags, dict) and all(lag.lstrip("-").isdecimal() for lag in lags)))
    )


def _shares(shares: dict[str, Any]) -> dict[str, Any]:
    blocked = {str(peer): float(share) for peer, share in shares.get("blocked", {}).items()}
    busy = float(shares["busy"])
    if not all(map(math.isfinite, (busy, *blocked.values()))):
        raise ValueError("a share is not finite")
    return {"busy": busy, "blocked": blocked, "idle": max(0.0, 1.0 - busy - sum(blocked.values()))}
