"""Which member serves which version, and what happens next. A pure state machine: no clock, no I/O, no tensors.

Generators *follow*: each goes to the newest version as soon as it is idle, and skips what was superseded meanwhile, so
that a slow one delays only itself. Evaluators *hold*: they move only when `sync` asks. A member's way to a version:

    idle ──Stage──▶ staging ──staged──▶ (Commit) committing ──committed──▶ idle, serving it
                        └───── failed (refused, deadline) ──────┴──▶ idle, evicted until a later version succeeds

A version that is broadcast (COLLECTIVE) goes to all idle members that want it in one `Round`, one round at a time, for
which those that are just committing are waited for a little; each then goes its own way again.

Every method returns the actions that the actor carries out, in order. A buffer is released exactly once: when it is
neither the newest (a late joiner needs that one) nor on the way to a member.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headrace.transport.weights import Manifest
from headrace.transport.weights.collective import COLLECTIVE

INITIAL = 0
"""The version that `model_path` held."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Ask `member` to stage; then call `staged` or `failed`."""

    member: str
    incarnation: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Round:
    """Have all of these stage it at once ((member, incarnation), …); then `staged` or `failed` for each, and
    `round_over`."""

    manifest: Manifest
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Linger:
    """Members that are ready for a round wait for others, which are committing; after a little while call
    `linger_over`."""

    number: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Ask `member` to commit; then call `committed` or `failed`. Version INITIAL: serve what you have."""

    member: str
    incarnation: str
    version: int


@dataclass(frozen=True, slots=True)
class Served:
    """Every generator in service has acknowledged this version or a later one."""

    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Release:
    """Nobody reads this version's buffer any more, nor will."""

    version: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """The member failed a phase; versions are served without it until it succeeds again."""

    member: str
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Every live generator failed the newest version: without another one this run would wait for ever."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Synced:
    """Every evaluator either holds this version or is in `failed`."""

    version: int
    step: int
    failed: tuple[str, ...]


Action = Stage | Round | Linger | Commit | Served | Release | Evicted | Refused | Synced


@dataclass(slots=True)
class _Member:
    name: str
    incarnation: str
    follows: bool
    phase: Literal["idle", "staging", "committing"] = "idle"
    target: int | None = None
    served: int | None = None
    """The version that it acknowledged last; None before the first: it takes no requests yet."""
    failed: int | None = None
    """The version that it failed last; None once it has succeeded since."""


class Rollout:
    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._manifests: dict[int, Manifest] = {}
        self._steps: dict[int, int] = {INITIAL: 0}
        self._newest = INITIAL
        self._served = INITIAL
        self._held: int | None = None
        self._syncing = False
        self._withdrawn = False
        self._in_round: int | None = None  # the version that is broadcast now
        self._linger = 0  # the number of the wait before the next round
        self._lingering: Literal["no", "waiting", "over"] = "no"

    @property
    def newest(self) -> int:
        return self._newest

    @property
    def served(self) -> int:
        """The newest version of which `Served` was reported."""
        return self._served

    @property
    def served_step(self) -> int:
        """The step that `served` holds."""
        return self._steps[self._served]

    @property
    def buffers(self) -> frozenset[int]:
        """Versions whose buffers are not released yet."""
        return frozenset(self._manifests)

    def knows(self, name: str, incarnation: str) -> bool:
        """Whether that incarnation of the member lives."""
        member = self._members.get(name)
        return member is not None and member.incarnation == incarnation

    def serving(self) -> dict[str, int | None]:
        """member → version that it serves; None: it waits for its first."""
        return {name: member.served for name, member in self._members.items()}

    def evicted(self) -> list[str]:
        return [name for name, member in self._members.items() if member.failed is not None]

    # --- events ------------------------------------------------------------------------------------------------------

    def publish(self, manifest: Manifest) -> list[Action]:
        """The learner staged a version. Raises ValueError where it is not above every earlier one; the newest once more
        (a learner that did not hear the answer) changes nothing."""
        known = self._manifests.get(self._newest)
        if known is not None and replace(manifest, probe=None) == replace(known, probe=None):  # it may hold a NaN
            return []
        if manifest.version <= self._newest:
            raise ValueError(
                f"version {manifest.version} is not above {self._newest}, the newest published; versions are never "
                "reused: a restarted learner publishes the last one + 1"
            )
        self._newest, self._withdrawn = manifest.version, False
        if self._syncing and self._held is None:
            self._held = self._newest
        self._manifests[manifest.version] = manifest
        self._steps[manifest.version] = manifest.step
        return self._settle()

    def member_up(self, name: str, incarnation: str, *, follows: bool) -> list[Action]:
        """A generator (`follows`) or an evaluator appeared, or appeared anew."""
        self._members[name] = _Member(name, incarnation, follows)
        return self._settle()

    def member_down(self, name: str, incarnation: str) -> list[Action]:
        """That incarnation is gone; a later one of the same name is not."""
        member = self._members.get(name)
        if member is not None and member.incarnation == incarnation:
            del self._members[name]
        return self._settle()

    def staged(self, name: str, incarnation: str, version: int) -> list[Action]:
        """The member has the bytes and has verified them."""
        member = self._at(name, incarnation, version, "staging")
        if member is None:
            return []
        member.phase = "committing"
        return [Commit(name, incarnation, version)]

    def committed(self, name: str, incarnation: str, version: int, *, serving: int) -> list[Action]:
        """The member answered the commit of `version`; it serves `serving` (more, where this server forgot it)."""
        member = self._at(name, incarnation, version, "committing")
        if member is None:
            return []
        member.phase, member.target, member.failed = "idle", None, None
        member.served = max(serving, member.served or INITIAL)
        return self._settle()

    def failed(self, name: str, incarnation: str, version: int, reason: str) -> list[Action]:
        """The member refused or missed its deadline; what it served before, it serves on."""
        member = self._at(name, incarnation, version, "staging", "committing")
        if member is None:
            return []
        member.phase, member.target, member.failed = "idle", None, version
        actions = [Evicted(name, version, reason), *self._settle()]
        followers = [m for m in self._members.values() if m.follows]
        if member.follows and all(m.phase == "idle" and m.failed == self._newest for m in followers):
            actions.append(Refused(self._newest, f"{name}: {reason}"))
        return actions

    def round_over(self) -> list[Action]:
        """Nothing of the round is under way any more."""
        self._in_round = None
        return self._settle()

    def linger_over(self, number: int) -> list[Action]:
        """The others were waited for long enough."""
        if number == self._linger and self._lingering == "waiting":
            self._lingering = "over"
        return self._settle()

    def withdraw(self) -> list[Action]:
        """The learner has one buffer and needs it for the next version: nobody begins with the newest any more, and it
        is released as soon as those under way are through. `publish` ends this."""
        self._withdrawn = self._newest != INITIAL
        return self._settle()

    def sync(self) -> list[Action]:
        """Bring the evaluators to the version that is the newest now, or, where that is withdrawn, to the next. Ends in
        one `Synced`."""
        self._held = None if self._withdrawn else self._newest
        self._syncing = True
        for member in self._members.values():
            if not member.follows:
                member.failed = None
        return self._settle()

    # --- rules -------------------------------------------------------------------------------------------------------

    def _at(self, name: str, incarnation: str, version: int, *phases: str) -> _Member | None:
        """The member, if this answer is the one that it owes."""
        member = self._members.get(name)
        if member is None or member.incarnation != incarnation or member.target != version:
            return None
        return member if member.phase in phases else None

    def _settle(self) -> list[Action]:
        """Everything that follows from the state: who moves, what is served, what is free."""
        actions: list[Action] = []
        for member in self._members.values():
            actions += self._move(member)
        actions += self._move_together()
        actions += self._report_served()
        actions += self._report_synced()
        actions += self._release()
        return actions

    def _move(self, member: _Member) -> list[Action]:
        version = self._due(member)
        if version is None or self._is_collective(version):
            return []
        member.target = version
        if version == INITIAL:
            member.phase = "committing"
            return [Commit(member.name, member.incarnation, INITIAL)]
        member.phase = "staging"
        return [Stage(member.name, member.incarnation, self._manifests[version])]

    def _move_together(self) -> list[Action]:
        """Of two versions that are wanted the older first: only evaluators want it, and only until they have it."""
        due = {member.name: self._due(member) for member in self._members.values()}
        versions = [version for version in due.values() if version is not None and self._is_collective(version)]
        if self._in_round is not None or not versions:
            return []
        version = min(versions)
        committing = any(member.phase == "committing" for member in self._members.values())
        if committing and self._lingering == "waiting":
            return []
        if committing and self._lingering == "no":
            self._linger, self._lingering = self._linger + 1, "waiting"
            return [Linger(self._linger)]
        self._lingering, self._in_round = "no", version
        members = [member for member in self._members.values() if due[member.name] == version]
        for member in members:
            member.phase, member.target = "staging", version
        return [Round(self._manifests[version], tuple((member.name, member.incarnation) for member in members))]

    def _is_collective(self, version: int) -> bool:
        return version != INITIAL and self._manifests[version].transport == COLLECTIVE

    def _due(self, member: _Member) -> int | None:
        """The version that the member should go to now."""
        version = self._wanted(member)
        if member.phase != "idle" or version is None or version == member.failed:
            return None
        if member.served is not None and member.served >= version:
            return None
        return version

    def _wanted(self, member: _Member) -> int | None:
        """An evaluator that joins between two syncs waits for the next, unless its version is still at hand."""
        if not member.follows:
            at_hand = self._held is not None and (self._held == INITIAL or self._held in self._manifests)
            return self._held if at_hand else None
        if self._newest == INITIAL and any((other.served or INITIAL) > INITIAL for other in self._members.values()):
            return None  # this server was restarted: nobody may begin with the initial weights now
        return None if self._withdrawn else self._newest

    def _report_served(self) -> list[Action]:
        counted = [m.served for m in self._members.values() if m.follows and m.failed is None and m.served is not None]
        version = min(counted, default=INITIAL)
        if version <= self._served or version not in self._steps:
            return []
        self._served = version
        step = self._steps[version]
        self._steps = {v: s for v, s in self._steps.items() if v >= version or v == self._held}
        return [Served(version, step)]

    def _report_synced(self) -> list[Action]:
        if not self._syncing or self._held is None:
            return []
        evaluators = [member for member in self._members.values() if not member.follows]
        if any(member.phase != "idle" for member in evaluators):
            return []
        self._syncing = False
        failed = tuple(member.name for member in evaluators if member.failed is not None)
        return [Synced(self._held, self._steps[self._held], failed)]

    def _release(self) -> list[Action]:
        needed = {self._in_round, *(member.target for member in self._members.values())}
        if not self._withdrawn:
            needed.add(self._newest)
        if self._syncing:
            needed.add(self._held)
        free = sorted(version for version in self._manifests if version not in needed)
        for version in free:
            del self._manifests[version]
        return [Release(version) for version in free]
