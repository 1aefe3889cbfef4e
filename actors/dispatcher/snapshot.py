"""What a restarted dispatcher goes on from, as `journal.py` reads it and `TrainingSessions.restore` takes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.actors.dispatcher.ledger import Ended, SessionState
from headrace.actors.session import Trajectory


@dataclass(frozen=True, slots=True)
class SavedSession:
    """One session that has not ended. Its spec follows from the task source, `task_index`, `member` and the
    settings."""

    session_id: str
    group_id: str
    member: int
    task_index: int
    state: SessionState
    attempt: int
    holder: str | None
    version_at_start: int
    ready_order: int | None
    ready_step: int | None
    batch: int | None
    losses: int
    trajectory: Trajectory | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`facts`: what `TrainingSessions.facts` and `Evaluator.facts` said at the last commit, by key; JSON values.
    `sessions`: in the order of issue. `num_lives`: dispatchers that wrote this journal before."""

    facts: dict[str, Any] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    sessions: tuple[SavedSession, ...] = ()
    ended: tuple[Ended, ...] = ()
    num_lives: int = 0
