"""Where the time of every actor went: busy, blocked on a role, idle; as shares of its wall time, by actor and by
role. Pure.

Snapshots are cumulative, so the newest one of each actor says everything. An actor that is gone keeps its last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.transport import ActivitySnapshot


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of `wall_s`; busy + Σ blocked + idle = 1 (all idle where no time has passed)."""

    wall_s: float
    busy: float
    idle: float
    blocked: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"busy": self.busy, "blocked": self.blocked, "idle": self.idle, "wall_s": self.wall_s}


def shares(snapshots: Iterable[ActivitySnapshot]) -> Shares:
    """The shares of several actors together, each weighted by its wall time. What rounding leaves over is idle."""
    taken = list(snapshots)
    wall_s = sum(snapshot.wall_s for snapshot in taken)
    if wall_s <= 0:
        return Shares(0.0, 0.0, 1.0)
    busy = sum(snapshot.busy_s for snapshot in taken) / wall_s
    blocked: dict[str, float] = {}
    for snapshot in taken:
        for role, blocked_s in snapshot.blocked_s.items():
            blocked[role] = blocked.get(role, 0.0) + blocked_s / wall_s
    idle = 1.0 - busy - sum(blocked.values())
    return Shares(wall_s, busy, max(0.0, idle), blocked)


def _counts_anew(last: ActivitySnapshot, snapshot: ActivitySnapshot) -> bool:
    """A new incarnation counts from zero: something that only grows has shrunk."""
    return snapshot.wall_s < last.wall_s or snapshot.busy_s < last.busy_s or snapshot.idle_s < last.idle_s


class ActivityBook:
    """The newest snapshot of each actor, an earlier incarnation's time added to its successor's."""

    def __init__(self) -> None:
        self._newest: dict[str, ActivitySnapshot] = {}
        self._before: dict[str, list[ActivitySnapshot]] = {}

    def take(self, snapshot: ActivitySnapshot) -> None:
        last = self._newest.get(snapshot.name)
        if last is not None and _counts_anew(last, snapshot):
            self._before.setdefault(snapshot.name, []).append(last)
        self._newest[snapshot.name] = snapshot

    @property
    def newest(self) -> dict[str, ActivitySnapshot]:
        """By actor, those that are gone included."""
        return self._newest

    def actors(self) -> dict[str, Shares]:
        return {name: shares([*self._before.get(name, []), last]) for name, last in sorted(self._newest.items())}

    def roles(self) -> dict[str, Shares]:
        """By role: the part of a name before the slash."""
        by_role: dict[str, list[ActivitySnapshot]] = {}
        for name, last in self._newest.items():
            by_role.setdefault(name.partition("/")[0], []).extend([*self._before.get(name, []), last])
        return {role: shares(snapshots) for role, snapshots in sorted(by_role.items())}

    def as_json(self) -> dict[str, Any]:
        """The content of activity.json."""
        details = {
            name: self.actors()[name].as_json()
            | {"working_s": last.working_s, "mailbox": last.mailbox, "waiting_on": last.waiting_on}
            for name, last in sorted(self._newest.items())
        }
        return {"roles": {role: s.as_json() for role, s in self.roles().items()}, "actors": details}
