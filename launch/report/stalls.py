"""When the run stood still, out of the monitor's stalls.jsonl: how often, for how long, and who was to blame. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

UNKNOWN = "unknown"


def stalls(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`count` of stalls (work that only took long is none), `longest_s` of them (None without one), `last_culprit` and
    `last_summary`. A restarted monitor counts its episodes anew: each begins with the first time it was told of."""
    count = 0
    longest_s: float | None = None
    last: Mapping[str, Any] = {}
    is_open = False
    for line in lines:
        if line.get("told") == 1:
            is_open = False
        if line.get("is_stall") is True:
            count += not is_open
            is_open, last = True, line
        lasted_s = line.get("lasted_s", line.get("quiet_s"))
        if is_open and isinstance(lasted_s, int | float):
            longest_s = max(longest_s or 0.0, float(lasted_s))
        if "lasted_s" in line:
            is_open = False
    return {
        "count": count,
        "longest_s": longest_s,
        "last_culprit": str(last.get("culprit") or last.get("kind", UNKNOWN)) if last else None,
        "last_summary": str(last.get("summary", "")) if last else None,
    }
