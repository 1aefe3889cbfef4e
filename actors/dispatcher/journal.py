"""ledger.sqlite: the state of every training session, and what else a restarted dispatcher must know. One writer.

    sessions      a row for each session that was ever issued: its state now, or how it ended
    trajectories  of graded sessions that have not ended, encoded as a message
    versions      version of the weights → optimizer step
    facts         name → JSON: the cursor of the task source, counters, the evaluation schedule, …

`write` is one transaction. It goes to the write-ahead log without waiting for the disk: what was committed survives
the death of this process at any instant, not a loss of power (see docs/decisions/ledger_journal.md). Readers may look
at any time: `sqlite3 ledger.sqlite "select state, reason, count(*) from sessions group by 1, 2"`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.actors.dispatcher.ledger import DropReason, Ended, LedgerChanges, SessionRecord, SessionState
from headrace.actors.dispatcher.snapshot import SavedSession, Snapshot
from headrace.actors.messages import SessionGraded
from headrace.actors.session import Trajectory
from headrace.transport.codec import decode, encode, pack, unpack

FORMAT = 2
IN_MEMORY = ":memory:"
_SCHEMA = """
create table if not exists sessions (
    session_id text primary key, group_id text not null, member integer not null, task_index integer not null,
    task_id text not null, state text not null, reason text, attempt integer not null, holder text,
    version_at_start integer not null, reward real, tokens integer, version_tokens text, ready_order integer,
    ready_step integer, batch integer, step integer, lag integer, token_lags text,
    losses integer not null default 0
) without rowid;
create table if not exists trajectories (session_id text primary key, trajectory blob not null);
create table if not exists versions (version integer primary key, step integer not null);
create table if not exists facts (name text primary key, value text not null) without rowid;
"""
_WRITE_SESSION = f"insert or replace into sessions values ({', '.join('?' * 20)})"
_READ_OPEN = """
select session_id, group_id, member, task_index, state, attempt, holder, version_at_start, ready_order, ready_step,
       batch, losses, trajectory
from sessions left join trajectories using (session_id)
where state not in ('trained', 'dropped')
order by session_id
"""
_READ_ENDED = """
select state, reason, case when state = 'trained' then step end as step_trained, count(*), total(tokens)
from sessions where state in ('trained', 'dropped') group by 1, 2, 3
"""
_TASKS_AFTER = """
select task_index from sessions where state = 'trained' and step > ? group by group_id, task_index order by group_id
"""
_NEXT_TASK = "select coalesce(max(task_index) + 1, 0) from sessions where state = 'trained' and step <= ?"
_ROLL_BACK = "update sessions set state = 'dropped', reason = 'rolled_back' where state = 'trained' and step > ?"


class JournalDamaged(RuntimeError):
    """The file is no journal that this release can go on from. Says which file, and what to do."""


class Journal:
    """Opens the file at `path`, or makes it. Blocking; everything runs on the caller's thread."""

    def __init__(self, path: str = IN_MEMORY) -> None:
        self.path = path
        if path != IN_MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._facts: dict[str, object] = {}
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            raise JournalDamaged(
                f"{path} cannot be used as the dispatcher's journal: {error}; restore it from a copy, or start a new "
                "run (what a run has trained is known only there)"
            ) from error

    def _open(self) -> None:
        self._database = sqlite3.connect(self.path, isolation_level=None, timeout=5.0, check_same_thread=False)
        execute = self._database.execute
        execute("pragma journal_mode = wal")
        execute("pragma synchronous = off")
        execute("pragma secure_delete = off")  # some builds overwrite what is deleted: a fifth of the cost
        execute("pragma temp_store = memory")
        self._database.executescript(_SCHEMA)
        self._facts = {name: json.loads(value) for name, value in execute("select name, value from facts")}
        found = self._facts.get("format", FORMAT)
        if found != FORMAT:
            raise JournalDamaged(
                f"{self.path} has format {found}, this release writes format {FORMAT}; finish the run with the release "
                "that began it"
            )
        lives = self._facts.get("lives", 0)
        self._num_lives = lives if isinstance(lives, int) else 0
        self._write_facts({"format": FORMAT, "lives": self._num_lives + 1})

    def load(self) -> Snapshot | None:
        """What the predecessor left; None where there was none, or it had not committed anything."""
        if "next_task" not in self._facts:
            return None
        execute = self._database.execute
        return Snapshot(
            facts=dict(self._facts),
            versions=dict(execute("select version, step from versions")),
            sessions=tuple(_saved(row) for row in execute(_READ_OPEN)),
            ended=tuple(_ended(row) for row in execute(_READ_ENDED)),
            num_lives=self._num_lives,
        )

    def tasks_trained_after(self, step: int) -> list[int]:
        """Indices of the tasks whose sessions went into steps after `step`, in the order in which they were issued."""
        rows = self._database.execute(_TASKS_AFTER, (step,))
        return [index for (index,) in rows]

    def next_task_after(self, step: int) -> int:
        """The index behind the last task of which a session went into `step` or an earlier one; 0 before any."""
        found: int = self._database.execute(_NEXT_TASK, (step,)).fetchone()[0]
        return found

    def write(self, changes: LedgerChanges, versions: Mapping[int, int], facts: Mapping[str, object]) -> None:
        """One transaction. Nothing is written where nothing changed."""
        records = changes.records
        execute, many = self._database.execute, self._database.executemany
        execute("begin immediate")
        try:
            if changes.rolled_back_to is not None:
                execute(_ROLL_BACK, (changes.rolled_back_to,))
            many(_WRITE_SESSION, map(_row, records))
            new = [r for r in records if r.trajectory is not None and not r.trajectory_saved]
            many(
                "insert or replace into trajectories values (?, ?)",
                ((r.spec.session_id, _to_blob(r.trajectory)) for r in new if r.trajectory is not None),
            )
            many(
                "delete from trajectories where session_id = ?",
                ((r.spec.session_id,) for r in records if r.graded and r.trajectory is None),
            )
            many("insert or replace into versions values (?, ?)", versions.items())
            self._write_facts(facts)
            execute("commit")
        except BaseException:
            self._database.rollback()
            raise
        for record in new:
            record.trajectory_saved = True

    def close(self) -> None:
        """Leaves one plain file that can be read from anywhere. Idempotent."""
        with suppress(sqlite3.Error):  # a reader is looking: the log beside the file stays, and is read with it
            self._database.execute("pragma journal_mode = delete")
        self._database.close()

    def _write_facts(self, facts: Mapping[str, object]) -> None:
        known = self._facts
        changed = {name: value for name, value in facts.items() if name not in known or known[name] != value}
        self._database.executemany(
            "insert or replace into facts values (?, ?)", ((name, json.dumps(value)) for name, value in changed.items())
        )
        known |= changed


def _row(record: SessionRecord) -> tuple[object, ...]:
    spec = record.spec
    return (
        spec.session_id,
        spec.group_id,
        spec.member,
        record.task_index,
        spec.task.task_id,
        record.state,
        record.reason,
        spec.attempt,
        record.holder,
        record.version_at_start,
        record.reward,
        record.num_tokens if record.graded else None,
        _counts(record.version_tokens),
        record.ready_order,
        record.ready_step,
        record.batch,
        record.step,
        record.lag,
        _counts(record.token_lags),
        record.losses,
    )


def _counts(counts: dict[int, int] | None) -> str | None:
    return None if counts is None else json.dumps(counts)


def _saved(row: tuple[Any, ...]) -> SavedSession:
    (session_id, group_id, member, task_index, state, attempt, holder) = row[:7]
    (version_at_start, ready_order, ready_step, batch, losses, blob) = row[7:]
    return SavedSession(
        session_id=session_id,
        group_id=group_id,
        member=member,
        task_index=task_index,
        state=SessionState(state),
        attempt=attempt,
        holder=holder,
        version_at_start=version_at_start,
        ready_order=ready_order,
        ready_step=ready_step,
        batch=batch,
        losses=losses,
        trajectory=None if blob is None else _from_blob(blob),
    )


def _ended(row: tuple[Any, ...]) -> Ended:
    state, reason, step, sessions, tokens = row
    return Ended(SessionState(state), None if reason is None else DropReason(reason), step, sessions, int(tokens))


def _to_blob(trajectory: Trajectory) -> bytes:
    payload, frames = encode(SessionGraded(trajectory))
    return pack([payload, [bytes(frame) for frame in frames]])


def _from_blob(blob: bytes) -> Trajectory:
    payload, frames = unpack(blob)
    message: SessionGraded = decode(payload, frames)
    return message.trajectory
