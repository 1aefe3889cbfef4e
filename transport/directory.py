"""Names → where they serve. A pure state machine: changes go in, numbered changes for the subscribers come out.

The hosting runtime applies `register`, `unregister`, `process_leaving`, `process_down`, `heartbeat`, `expire`; every
other runtime applies the resulting changes to its own copy (`apply`), so that all agree on the order. A dead
incarnation never comes back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from headrace.transport.errors import PeerLost
from headrace.transport.system import ActorRecord, DirectoryChange, DirectorySnapshot, PeerDown

_MAX_DEAD = 10_000


@functools.lru_cache(maxsize=16_384)
def role_of(name: str) -> str:
    """generator/3 → generator."""
    return name.partition("/")[0]


def full_name(name: str) -> str:
    """A bare role means its actor 0."""
    return name if "/" in name else f"{name}/0"


class DirectoryState:
    def __init__(self) -> None:
        self.revision = 0
        self._actors: dict[str, ActorRecord] = {}
        self._roles: dict[str, dict[str, ActorRecord]] = {}
        self._pinned: dict[str, ActorRecord] = {}
        self._dead: dict[str, str] = {}
        self._leaving: set[str] = set()
        self._last_beat_s: dict[str, float] = {}

    # --- reading ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> ActorRecord | None:
        return self._actors.get(name) or self._pinned.get(name)

    def pin(self, actor: ActorRecord) -> None:
        """Know an actor that is in no directory: the runtime's own, and the directory itself."""
        self._pinned[actor.name] = actor

    def members(self, role: str) -> dict[str, ActorRecord]:
        """Live actors of a role by name, without those that are leaving. Do not change it."""
        return self._roles.get(role, {})

    def incarnations(self) -> set[str]:
        """The processes in which actors live."""
        return {record.incarnation for record in (*self._actors.values(), *self._pinned.values())}

    def names(self) -> list[str]:
        return sorted(self._actors)

    def of_process(self, incarnation: str) -> list[ActorRecord]:
        """The announced actors of a process."""
        return [record for record in self._actors.values() if record.incarnation == incarnation]

    def is_leaving(self, incarnation: str) -> bool:
        """Whether that process takes no new work and ends when it has none."""
        return incarnation in self._leaving

    def death_of(self, incarnation: str) -> str | None:
        """Why that process is gone, or None."""
        return self._dead.get(incarnation)

    def snapshot(self) -> DirectorySnapshot:
        return DirectorySnapshot(
            self.revision, tuple(self._actors.values()), dict(self._dead), tuple(sorted(self._leaving))
        )

    # --- the host's transitions -------------------------------------------------------------------------------------

    def register(self, actor: ActorRecord) -> list[DirectoryChange]:
        """A newer incarnation replaces an older one of the same name. The same once more (its runtime did not hear the
        answer) changes nothing. Raises PeerLost for a dead incarnation."""
        reason = self._dead.get(actor.incarnation)
        if reason is not None:
            raise PeerLost.of(actor.name, actor.incarnation, f"declared dead before it registered ({reason})")
        changes = []
        old = self._actors.get(actor.name)
        if old == actor:
            return []
        if old is not None:
            changes.append(self._down(old, f"replaced by incarnation {actor.incarnation}"))
        changes.append(self._change(up=actor))
        return changes

    def unregister(self, name: str, incarnation: str, reason: str) -> list[DirectoryChange]:
        actor = self._actors.get(name)
        if actor is None or actor.incarnation != incarnation:
            return []
        return [self._down(actor, reason)]

    def process_leaving(self, incarnation: str) -> list[DirectoryChange]:
        """The process is to end when it has no work any more: nobody gives it new one. Idempotent; nothing of one that
        is dead or hosts no announced actor."""
        if incarnation in self._leaving or not self.of_process(incarnation):
            return []
        return [self._change(leaving=incarnation)]

    def process_down(self, incarnation: str, reason: str) -> list[DirectoryChange]:
        """The process died: all its actors are down, and nothing that it sent before counts as news. Idempotent."""
        if incarnation in self._dead:
            return []
        self._last_beat_s.pop(incarnation, None)
        changes = [self._down(actor, reason) for actor in self.of_process(incarnation)]
        changes.append(self._change(dead_incarnation=incarnation, reason=reason))
        return changes

    def heartbeat(self, incarnation: str, now_s: float) -> None:
        if incarnation not in self._dead:
            self._last_beat_s[incarnation] = now_s

    def expire(self, now_s: float, silence_s: float) -> list[DirectoryChange]:
        """Processes that have been silent for `silence_s` are declared down."""
        silent = [(i, now_s - beat_s) for i, beat_s in self._last_beat_s.items() if now_s - beat_s > silence_s]
        changes: list[DirectoryChange] = []
        for incarnation, quiet_s in silent:
            changes += self.process_down(incarnation, f"no heartbeat for {quiet_s:.1f} s (limit {silence_s:g} s)")
        return changes

    # --- every runtime's transitions --------------------------------------------------------------------------------

    def apply(self, change: DirectoryChange) -> None:
        """Take over one change in order."""
        self.revision = change.revision
        if change.up is not None:
            self._actors[change.up.name] = change.up
            self._roles.setdefault(role_of(change.up.name), {})[change.up.name] = change.up
            if change.up.incarnation in self._leaving:
                del self._roles[role_of(change.up.name)][change.up.name]
        if change.leaving:
            self._leaving.add(change.leaving)
            for record in self.of_process(change.leaving):
                self._roles[role_of(record.name)].pop(record.name, None)
        if change.down is not None:
            self._actors.pop(change.down.name, None)
            self._roles.get(role_of(change.down.name), {}).pop(change.down.name, None)
        if change.dead_incarnation:
            self._dead[change.dead_incarnation] = change.reason
            self._leaving.discard(change.dead_incarnation)
            while len(self._dead) > _MAX_DEAD:
                self._dead.pop(next(iter(self._dead)))

    def difference(self, snapshot: DirectorySnapshot) -> Iterable[DirectoryChange]:
        """The changes that turn this copy into `snapshot` (a runtime that joins, or that missed some)."""
        revision = snapshot.revision
        wanted = {actor.name: actor for actor in snapshot.actors}
        for name, actor in list(self._actors.items()):
            new = wanted.get(name)
            if new is None or new.incarnation != actor.incarnation:
                reason = snapshot.dead.get(actor.incarnation, "left")
                yield DirectoryChange(revision, down=PeerDown(name, actor.incarnation, reason))
        for incarnation, reason in snapshot.dead.items():
            if incarnation not in self._dead:
                yield DirectoryChange(revision, dead_incarnation=incarnation, reason=reason)
        for name, actor in wanted.items():
            if self._actors.get(name) != actor:
                yield DirectoryChange(revision, up=actor)
        for incarnation in snapshot.leaving:
            if incarnation not in self._leaving:
                yield DirectoryChange(revision, leaving=incarnation)
        yield DirectoryChange(revision)  # where nothing else differs, the number may: who came has gone again

    def _down(self, actor: ActorRecord, reason: str) -> DirectoryChange:
        return self._change(down=PeerDown(actor.name, actor.incarnation, reason))

    def _change(
        self,
        *,
        up: ActorRecord | None = None,
        down: PeerDown | None = None,
        dead_incarnation: str = "",
        reason: str = "",
        leaving: str = "",
    ) -> DirectoryChange:
        change = DirectoryChange(self.revision + 1, up, down, dead_incarnation, reason, leaving)
        self.apply(change)
        return change
