"""Who joined and left a run after its start: a line each in membership.jsonl of the run folder. Appended by scaler.py,
read by the report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

MEMBERSHIP_FILE = "membership.jsonl"


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """`time_s` since the supervisor started; `count` of the role's actors after it; `detail`: how it went."""

    time_s: float
    event: Literal["joined", "left"]
    process: str
    actors: tuple[str, ...]
    role: str
    node: str
    count: int
    detail: str


def append_change(folder: Path, change: MembershipChange) -> None:
    """Raises OSError."""
    with open(folder / MEMBERSHIP_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(change)) + "\n")
