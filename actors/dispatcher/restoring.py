"""The sessions of a journal as the dispatcher holds them: records, open groups, ready groups, the learner's batch.

Which structure a session belongs to follows from its state alone; this file says how. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.actors.dispatcher.buffer import ReadyGroup
from headrace.actors.dispatcher.groups import GroupBook
from headrace.actors.dispatcher.issue import GroupIssuer, group_number
from headrace.actors.dispatcher.ledger import Ledger, SessionRecord, SessionState
from headrace.actors.dispatcher.snapshot import SavedSession, Snapshot
from headrace.actors.session import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Restored:
    """`pending`: ids that wait for a slot, in the order of issue. `batch`: what the learner has."""

    pending: tuple[str, ...]
    ready: tuple[ReadyGroup, ...]
    batch: tuple[Group, ...]


def restore_sessions(
    snapshot: Snapshot, issuer: GroupIssuer, ledger: Ledger, groups: GroupBook, *, now_s: float
) -> Restored:
    """Fills `ledger` and `groups`, which are empty. Every attempt has its whole time again."""
    records = [_record(saved, issuer, now_s) for saved in snapshot.sessions]
    ledger.restore(records, snapshot.ended)
    ready: list[ReadyGroup] = []
    batch: list[Group] = []
    for members in _by_group(records):
        first = members[0]
        order = group_number(first.spec.group_id)
        if first.state is SessionState.TRAINING:
            batch.append(_group(members))
        elif first.state is SessionState.READY:
            ready.append(ReadyGroup.of(_group(members), order, first.ready_order or 0, first.ready_step or 0))
        else:
            graded = {m.spec.member: m.trajectory for m in members if m.trajectory is not None}
            groups.reopen([member.spec for member in members], order, graded, now_s)
    pending = [r.spec.session_id for r in records if r.state is SessionState.RUNNING and r.holder is None]
    return Restored(tuple(pending), tuple(ready), tuple(batch))


def _record(saved: SavedSession, issuer: GroupIssuer, now_s: float) -> SessionRecord:
    spec = issuer.spec(saved.group_id, saved.member, saved.task_index)
    record = SessionRecord(
        replace(spec, attempt=saved.attempt),
        saved.task_index,
        saved.state,
        holder=saved.holder,
        version_at_start=saved.version_at_start,
        since_s=now_s,
        ready_order=saved.ready_order,
        ready_step=saved.ready_step,
        batch=saved.batch,
        losses=saved.losses,
    )
    if saved.trajectory is not None:
        record.take_grade(saved.trajectory)
        record.trajectory_saved = True
    return record


def _by_group(records: Iterable[SessionRecord]) -> list[list[SessionRecord]]:
    groups: dict[str, list[SessionRecord]] = {}
    for record in records:
        groups.setdefault(record.spec.group_id, []).append(record)
    return list(groups.values())


def _group(members: list[SessionRecord]) -> Group:
    trajectories: list[Trajectory] = [m.trajectory for m in members if m.trajectory is not None]
    return Group(members[0].spec.group_id, tuple(sorted(trajectories, key=lambda t: t.spec.member)))
