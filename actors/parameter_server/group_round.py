"""One version to several members at once, by a collective broadcast. A pure state machine: no clock, no I/O.

    gather ──▶ (a group of exactly these members is there) ───────────────────────▶ send ──▶ over
       │└────▶ open ──▶ join ─────────────────────────────────────────────────────────┘│
       │                 └── one fails, or is late ──▶ abort ◀── one fails, or is late ─┘
       └──────────────────── without the culprit ────────┘

Everybody is asked first whether it is there: a rank that is missing from a collective would hold up all the others.
Where the group breaks, all leave it, say how far they came, and whoever is to blame is left out: who is gone, refused,
or does not answer; otherwise who came least far. Where nobody is, it is tried again MAX_BLAMELESS times, then given up.
A member that has the whole version, verified, is out of danger and goes on by itself.

Members whose groups are of another kind (a vLLM server that somebody else runs) share none: each is asked again once
the others are through, and then has the same way to itself, in a group of its own with the learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.transport.weights.collective import HEADRACE, VLLM

SENDER = "the learner"
MAX_BLAMELESS = 2
MAX_KEPT = 2
"""shared groups that stay: one of the generators, one of the evaluators; beside them one of each that shares none"""

Kind = Literal["lost", "late", "refused", "broken"]
"""Its process is gone; it did not answer; it says no; its group broke, whoever did it."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Ask `member` whether it is there; then `ready` or `fault`."""

    member: str


@dataclass(frozen=True, slots=True)
class Open:
    """Ask the sender for a group; then `opened` or `fault`."""

    group: str
    world_size: int
    keep: tuple[str, ...]
    kind: str = HEADRACE


@dataclass(frozen=True, slots=True)
class Join:
    """Ask `member` (or SENDER) to join; then `joined` or `fault`."""

    member: str
    group: str
    first_rank: int
    world_size: int
    keep: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Ask the sender to broadcast; then `sent` or `fault`."""

    group: str


@dataclass(frozen=True, slots=True)
class Receive:
    """Ask `member` to receive and verify; then `staged` or `fault`."""

    member: str
    group: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell `member` (or SENDER) to leave the group; then `aborted`, or `fault` with "late" or "lost"."""

    member: str
    group: str


@dataclass(frozen=True, slots=True)
class Staged:
    """The member has the version, verified."""

    member: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The member has not, and will not in this round."""

    member: str
    reason: str


@dataclass(frozen=True, slots=True)
class Over:
    """Every member was either Staged or Failed, and nothing is under way any more."""


Action = Gather | Open | Join | Send | Receive | Abort | Staged | Failed | Over


class Groups:
    """The groups that exist, by their members. `epoch`: of this life of the parameter server: no name is used twice."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._number = 0
        self._of: dict[frozenset[tuple[str, str]], str] = {}
        self._alone: dict[str, str] = {}
        """group of its own → the member that has it"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._of.values())

    def of(self, members: Mapping[str, str]) -> str | None:
        """The group of exactly these (name → incarnation); it becomes the last used."""
        key = frozenset(members.items())
        group = self._of.pop(key, None)
        if group is not None:
            self._of[key] = group
        return group

    def new_name(self) -> str:
        self._number += 1
        return f"{self._epoch}-{self._number}"

    def add(self, members: Mapping[str, str], group: str, *, alone: bool = False) -> None:
        """alone: it is the only member's own, and stays as long as that does."""
        kept = self.kept_beside_a_new_one(members, alone=alone)
        self._of = {of: name for of, name in self._of.items() if name in kept}
        self._alone = {name: owner for name, owner in self._alone.items() if name in kept}
        self._of[frozenset(members.items())] = group
        if alone:
            [self._alone[group]] = members

    def forget(self, group: str) -> None:
        self._of = {members: name for members, name in self._of.items() if name != group}
        self._alone.pop(group, None)

    def member_down(self, member: str) -> None:
        """The group that it had to itself is over; the learner leaves it with the next that is made."""
        for group in [group for group, owner in self._alone.items() if owner == member]:
            self.forget(group)

    def clear(self) -> None:
        """The learner is another one: it is in none of them."""
        self._of.clear()
        self._alone.clear()

    def kept_beside_a_new_one(self, members: Mapping[str, str], *, alone: bool = False) -> tuple[str, ...]:
        """members: of the new one."""
        shared = [name for name in self.names if name not in self._alone]
        own = [name for name in self.names if name in self._alone and self._alone[name] not in members]
        return (*own, *shared[-(MAX_KEPT if alone else MAX_KEPT - 1) :])


class GroupRound:
    """members: name → incarnation. Answers come through the methods, in any order; stray ones change nothing."""

    def __init__(self, members: Mapping[str, str], groups: Groups) -> None:
        self._members = dict(members)
        self._alone: set[str] = set()
        self._later: dict[str, str] = {}
        """who shares no group and has yet to have its turn"""
        self._groups = groups
        self._phase: Literal["gather", "open", "join", "send", "abort", "over"] = "gather"
        self._ranks: dict[str, int] = {}
        self._group = ""
        self._owed: set[str] = set()
        """who has yet to answer what this phase (or the one that broke) asked of it"""
        self._leaving: set[str] = set()
        self._faults: dict[str, tuple[Kind, str]] = {}
        self._progress: dict[str, int] = {}
        self._num_blameless = 0

    @property
    def phase(self) -> str:
        return self._phase

    def begin(self) -> list[Action]:
        self._phase, self._group = "gather", ""
        self._ranks, self._faults, self._progress = {}, {}, {}
        self._owed = set(self._members)
        return [Gather(member) for member in self._members]

    def ready(self, member: str, num_ranks: int, *, kind: str = HEADRACE, has_it: bool = False) -> list[Action]:
        """kind: of the groups that it joins; VLLM: a group of its own. has_it: it serves that version, or a newer one,
        already (this server was restarted)."""
        if not self._answers(member, "gather"):
            return []
        if has_it:
            del self._members[member]
            return [Staged(member), *self._form()]
        self._ranks[member] = num_ranks
        if kind == VLLM:
            self._alone.add(member)
        return self._form()

    def opened(self) -> list[Action]:
        if not self._answers(SENDER, "open"):
            return []
        self._phase = "join"
        self._owed = {SENDER, *self._members}
        world_size, keep = self._world_size, self._kept
        actions: list[Action] = [Join(SENDER, self._group, 0, world_size, keep)]
        first_rank = 1
        for member in self._members:
            actions.append(Join(member, self._group, first_rank, world_size, keep))
            first_rank += self._ranks[member]
        return actions

    def joined(self, member: str) -> list[Action]:
        if not self._answers(member, "join"):
            return []
        if self._phase == "abort":
            return self._judge()
        if self._owed:
            return []
        self._groups.add(self._members, self._group, alone=self._is_alone)
        return self._send()

    def sent(self) -> list[Action]:
        if not self._answers(SENDER, "send"):
            return []
        return self._judge() if self._phase == "abort" else self._end()

    def staged(self, member: str) -> list[Action]:
        if not self._answers(member, "send"):
            return []
        self._members.pop(member)
        after = self._judge() if self._phase == "abort" else self._end()
        return [Staged(member), *after]

    def fault(self, member: str, kind: Kind, reason: str) -> list[Action]:
        """What was asked of the member (or SENDER) ended so."""
        if member not in self._owed:
            return []
        self._owed.discard(member)
        if self._phase == "gather":
            del self._members[member]
            return [Failed(member, reason), *self._form()]
        self._faults[member] = kind, reason
        if self._phase == "abort":
            return self._judge()
        return self._break()

    def aborted(self, member: str, progress: int | None) -> list[Action]:
        """None: it did not answer."""
        if self._phase != "abort" or member not in self._leaving:
            return []
        self._leaving.discard(member)
        if member != SENDER and member not in self._members:
            return self._judge()  # it has the version: how far it came says nothing of the others
        if progress is None:
            self._owed.discard(member)  # nor will it answer that
            self._faults[member] = self._faults.get(member, ("late", "it does not answer"))
            if self._faults[member][0] == "broken":
                self._faults[member] = "late", self._faults[member][1]
        else:
            self._progress[member] = progress
        return self._judge()

    # --- rules -------------------------------------------------------------------------------------------------------

    @property
    def _world_size(self) -> int:
        return 1 + sum(self._ranks[member] for member in self._members)

    @property
    def _is_alone(self) -> bool:
        return all(member in self._alone for member in self._members)

    @property
    def _kept(self) -> tuple[str, ...]:
        return self._groups.kept_beside_a_new_one(self._members, alone=self._is_alone)

    def _set_aside(self) -> None:
        """All that share a group come first; then one at a time."""
        alone = [member for member in self._members if member in self._alone]
        for member in alone[1:] if len(alone) == len(self._members) else alone:
            self._later[member] = self._members.pop(member)

    def _answers(self, member: str, phase: str) -> bool:
        """Whether this is an answer that is owed, to that phase or to what broke in it."""
        if member not in self._owed or self._phase not in (phase, "abort"):
            return False
        self._owed.discard(member)
        return True

    def _form(self) -> list[Action]:
        if self._owed:
            return []
        self._set_aside()
        if not self._members:
            return self._end()
        group = self._groups.of(self._members)
        if group is not None:
            self._group = group
            return self._send()
        self._phase, self._group, self._owed = "open", self._groups.new_name(), {SENDER}
        return [Open(self._group, self._world_size, self._kept, VLLM if self._is_alone else HEADRACE)]

    def _send(self) -> list[Action]:
        self._phase = "send"
        self._owed = {SENDER, *self._members}
        return [Send(self._group), *(Receive(member, self._group) for member in self._members)]

    def _end(self) -> list[Action]:
        if self._owed or self._phase == "over":
            return []
        if self._later:
            member = next(iter(self._later))
            self._members, self._num_blameless = {member: self._later.pop(member)}, 0
            return self.begin()
        self._phase = "over"
        return [Over()]

    def _break(self) -> list[Action]:
        self._phase = "abort"
        self._groups.forget(self._group)
        self._leaving = {SENDER, *self._members}
        return [Abort(member, self._group) for member in (SENDER, *self._members)]

    def _judge(self) -> list[Action]:
        """Once all have left and nothing is owed any more: who is out, and on with the others."""
        if self._owed or self._leaving:
            return []
        out = self._culprits()
        if not out and (self._blames_sender() or self._num_blameless == MAX_BLAMELESS):
            _, why = self._faults.get(SENDER) or next(iter(self._faults.values()))
            out = dict.fromkeys(self._members, f"{SENDER} could not send: {why}")
        elif not out:
            self._num_blameless += 1
        for member in out:
            del self._members[member]
        failed = [Failed(member, reason) for member, reason in out.items()]
        return [*failed, *(self.begin() if self._members else self._end())]

    def _culprits(self) -> dict[str, str]:
        faults = {member: fault for member, fault in self._faults.items() if member in self._members}
        out = {member: reason for member, (kind, reason) in faults.items() if kind != "broken"}
        if out or self._blames_sender():
            return out
        least = min((self._progress[member] for member in self._members), default=0)
        if least >= max(self._progress.values()):
            return {}
        return {
            member: f"it came least far ({_place(least)}); {faults.get(member, ('broken', 'the group broke'))[1]}"
            for member in self._members
            if self._progress[member] == least
        }

    def _blames_sender(self) -> bool:
        return self._faults.get(SENDER, ("broken", ""))[0] != "broken"


def _place(progress: int) -> str:
    return ("it did not begin to join", "it joined nobody")[progress] if progress < 2 else f"{progress - 2} buckets"
