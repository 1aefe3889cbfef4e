"""Who joined and left in mid-run, out of the launcher's membership.jsonl. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def membership(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In the order in which it came about: `time_s`, `event` (joined, left), `actors`, `role`, `count` of the role
    then, `detail`. Lines that are none of the launcher's are left out."""
    return [
        {
            "time_s": float(line["time_s"]),
            "event": line["event"],
            "actors": [str(name) for name in line["actors"]],
            "role": str(line["role"]),
            "count": line["count"],
            "detail": str(line.get("detail", "")),
        }
        for line in lines
        if _is_sound(line)
    ]


def _is_sound(line: Mapping[str, Any]) -> bool:
    return (
        line.get("event") in ("joined", "left")
        and isinstance(line.get("time_s"), int | float)
        and isinstance(line.get("actors"), list)
        and isinstance(line.get("role"), str)
        and isinstance(line.get("count"), int)
    )


def in_words(change: Mapping[str, Any]) -> str:
    """generator/1 joined at 104 s, generator=2: it serves version 12"""
    who, then = " ".join(change["actors"]), f"{change['role']}={change['count']}"
    return f"{who} {change['event']} at {change['time_s']:.0f} s, {then}: {change['detail']}"
