"""Assembly of groups: which sessions share a baseline, when a group is complete, and whether it is worth a gradient.

Keyed by `group_id` alone: two groups of one prompt stay two, prompts that differ inside a group stay one. Pure, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.actors.session import Group, SessionSpec, Task, Trajectory

Verdict = Literal["useful", "all_pass", "all_fail", "all_equal"]

EQUAL_REWARDS = 1e-6
"""Rewards within this of one another have no variance; a standard deviation would be noise (0.1, 0.1, 0.1 in
float64)."""


@dataclass(slots=True)
class OpenGroup:
    """A group under way. `waiting` holds the ids that are neither graded nor gone. `began_s`: when it was issued."""

    group_id: str
    task: Task
    order: int
    waiting: set[str]
    began_s: float = 0.0
    graded: dict[int, Trajectory] = field(default_factory=dict)

    @property
    def possible(self) -> int:
        """How many members it can still end with."""
        return len(self.waiting) + len(self.graded)


class GroupBook:
    """All open groups. A group is complete with `group_size` graded members, whatever more were issued, or when none is
    left to wait for. It needs `min_members` to mean anything: 2, or 1 where groups are of one."""

    def __init__(self, group_size: int) -> None:
        if group_size < 1:
            raise ValueError(f"group_size must be >= 1, got {group_size}")
        self.group_size = group_size
        self.min_members = min(2, group_size)
        self._groups: dict[str, OpenGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group_id: str) -> OpenGroup | None:
        return self._groups.get(group_id)

    @property
    def surplus(self) -> int:
        """Members that will end as stragglers if all goes well: those beyond `group_size`."""
        return sum(max(0, group.possible - self.group_size) for group in self._groups.values())

    def late(self, before_s: float) -> list[OpenGroup]:
        """Groups issued at or before that time that have enough graded members to go on without the rest."""
        enough = [group for group in self._groups.values() if group.waiting and len(group.graded) >= self.min_members]
        return [group for group in enough if group.began_s <= before_s]

    def open(self, specs: list[SessionSpec], order: int, began_s: float = 0.0) -> None:
        """Start a group; `order` numbers the groups by issue."""
        first = specs[0]
        waiting = {spec.session_id for spec in specs}
        self._groups[first.group_id] = OpenGroup(first.group_id, first.task, order, waiting, began_s)

    def reopen(self, specs: list[SessionSpec], order: int, graded: dict[int, Trajectory], began_s: float = 0.0) -> None:
        """A group under way as a journal knew it: the members that are left, and the trajectories of some of them."""
        self.open(specs, order, began_s)
        for trajectory in graded.values():
            self.grade(trajectory)

    def grade(self, trajectory: Trajectory) -> OpenGroup | None:
        """One member is graded. Returns the group where it stands complete."""
        group = self._groups[trajectory.spec.group_id]
        group.waiting.discard(trajectory.spec.session_id)
        group.graded[trajectory.spec.member] = trajectory
        return group if not group.waiting or len(group.graded) >= self.group_size else None

    def lose(self, spec: SessionSpec) -> OpenGroup | None:
        """One member is gone for good. Returns the group where it stands complete or can no longer succeed."""
        group = self._groups.get(spec.group_id)
        if group is None:
            return None
        group.waiting.discard(spec.session_id)
        return group if not group.waiting or self.hopeless(group) else None

    def hopeless(self, group: OpenGroup) -> bool:
        return group.possible < self.min_members

    def close(self, group_id: str) -> Group:
        """Take the group out, its graded members in the order of `member`."""
        group = self._groups.pop(group_id)
        return Group(group_id, tuple(group.graded[member] for member in sorted(group.graded)))


def judge(group: Group, *, pass_reward: float = 1.0) -> Verdict:
    """Whether the rewards differ, by max - min. All equal groups are told apart: all pass, all fail (<= 0), or in
    between."""
    rewards = [t.reward for t in group.trajectories if t.reward is not None]
    if not rewards:
        return "all_fail"
    if max(rewards) - min(rewards) > EQUAL_REWARDS:
        return "useful"
    if min(rewards) >= pass_reward - EQUAL_REWARDS:
        return "all_pass"
    return "all_fail" if max(rewards) <= EQUAL_REWARDS else "all_equal"


def passed(group: Group, *, pass_reward: float = 1.0) -> float:
    """The part of its sessions whose reward is that of a pass; 0 of none."""
    rewards = [t.reward for t in group.trajectories if t.reward is not None]
    return sum(reward >= pass_reward - EQUAL_REWARDS for reward in rewards) / max(1, len(rewards))


def identical(group: Group) -> bool:
    """Whether every session of the group sampled the same tokens; at temperature 1 a sign of shared seeds, or of
    collapse."""
    first = group.trajectories[0].token_ids
    rest = group.trajectories[1:]
    return bool(rest) and all(len(t.token_ids) == len(first) and (t.token_ids == first).all() for t in rest)
