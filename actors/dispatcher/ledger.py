"""The ledger of training sessions: the state of each one, and where every one that was ever issued ended.

A plain state machine without I/O. After every transition it checks

    issued = running + grading + ready + training + trained + sum of dropped by reason

Records of ended sessions leave the memory (the journal on disk has them); an id that is unknown here has ended or
never was. What changed since the last `take_changes` is what the journal writes next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from headrace.actors.session import NO_VERSION, SessionSpec, Trajectory


class SessionState(StrEnum):
    RUNNING = "running"
    """issued: waiting for a slot, or in an environment"""
    GRADING = "grading"
    """a grader owns it, or it is graded and waits for the rest of its group"""
    READY = "ready"
    TRAINING = "training"
    TRAINED = "trained"
    DROPPED = "dropped"


class DropReason(StrEnum):
    OVER_AGE = "over_age"
    CANCELLED = "cancelled"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ZERO_VARIANCE = "zero_variance"
    UNGRADED = "ungraded"
    """the grader could give no reward; or its group was too small without it"""
    FILTERED = "filtered"
    QUARANTINED = "quarantined"
    ROLLED_BACK = "rolled_back"
    LOST = "lost"
    STRAGGLER = "straggler"
    """its group went on without it: it had enough members, or was past its deadline"""


class LedgerImbalance(RuntimeError):
    """The invariant does not hold, or a transition does not exist: a defect of the dispatcher, never of a peer."""


OPEN_STATES = (SessionState.RUNNING, SessionState.GRADING, SessionState.READY)
LIVE_STATES = (*OPEN_STATES, SessionState.TRAINING)
_ENDED = frozenset({SessionState.TRAINED, SessionState.DROPPED})
_NEXT: dict[SessionState, frozenset[SessionState]] = {
    SessionState.RUNNING: frozenset({SessionState.GRADING, SessionState.DROPPED}),
    SessionState.GRADING: frozenset({SessionState.RUNNING, SessionState.READY, SessionState.DROPPED}),
    SessionState.READY: frozenset({SessionState.TRAINING, SessionState.DROPPED}),
    SessionState.TRAINING: frozenset({SessionState.TRAINED, SessionState.DROPPED}),
}


@dataclass(slots=True)
class SessionRecord:
    """What the dispatcher knows of one session. `holder` is the actor that owns it now, None while it waits for a slot.
    `trajectory` is kept from the grade to the end. `version_tokens` maps a version to the trained tokens that it
    sampled, once the session is graded; `token_lags` a lag to the tokens that had it when they were trained (or dropped
    as over age), `lag` is the largest of them. `ready_order`: the number of its group by becoming ready; `ready_step`:
    the learner's steps then; `batch`: the number of the batch in which the learner has it. `losses`: attempts that were
    lost with their holder."""

    spec: SessionSpec
    task_index: int = 0
    state: SessionState = SessionState.RUNNING
    reason: DropReason | None = None
    holder: str | None = None
    version_at_start: int = NO_VERSION
    since_s: float = 0.0
    trajectory: Trajectory | None = None
    trajectory_saved: bool = True
    reward: float | None = None
    num_tokens: int = 0
    version_tokens: dict[int, int] | None = None
    step: int | None = None
    lag: int | None = None
    token_lags: dict[int, int] | None = None
    ready_order: int | None = None
    ready_step: int | None = None
    batch: int | None = None
    losses: int = 0

    @property
    def graded(self) -> bool:
        return self.version_tokens is not None

    def take_grade(self, trajectory: Trajectory) -> None:
        self.trajectory, self.trajectory_saved = trajectory, False
        self.reward = trajectory.reward
        versions, counts = np.unique(trajectory.versions[trajectory.loss_mask], return_counts=True)
        self.version_tokens = dict(zip(versions.tolist(), counts.tolist(), strict=True))
        self.num_tokens = int(counts.sum())

    @property
    def oldest_version(self) -> int:
        return min(self.version_tokens) if self.version_tokens else NO_VERSION

    @property
    def newest_version(self) -> int:
        return max(self.version_tokens) if self.version_tokens else NO_VERSION


@dataclass(frozen=True, slots=True)
class Ended:
    """How many sessions ended in one way, and their sampled tokens. `step` is that of trained ones."""

    state: SessionState
    reason: DropReason | None
    step: int | None
    sessions: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What to write: first every session on disk that was trained after step `rolled_back_to` becomes
    dropped{rolled_back}, then each of `records` replaces what is there."""

    rolled_back_to: int | None
    records: tuple[SessionRecord, ...]


class Ledger:
    """`wasted_tokens`: sampled tokens of dropped sessions by reason, as far as their trajectories were seen."""

    def __init__(self) -> None:
        self._records: dict[str, SessionRecord] = {}
        self._counts: Counter[SessionState] = Counter()
        self._trained: dict[int, Counter[str]] = {}
        self._changed: dict[str, SessionRecord] = {}
        self._rolled_back_to: int | None = None
        self.issued = 0
        self.dropped: Counter[DropReason] = Counter()
        self.wasted_tokens: Counter[DropReason] = Counter()

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._records

    def get(self, session_id: str) -> SessionRecord | None:
        """The record of a session that has not ended, else None."""
        return self._records.get(session_id)

    def records(self) -> Iterator[SessionRecord]:
        """Every session that has not ended, in the order of issue."""
        return iter(self._records.values())

    def count(self, *states: SessionState) -> int:
        return sum(self._counts[state] for state in states)

    @property
    def num_open(self) -> int:
        """Sessions that are issued and not yet handed to the learner."""
        return self.count(*OPEN_STATES)

    @property
    def trained_tokens(self) -> int:
        return sum(step["tokens"] for step in self._trained.values())

    # --- transitions ------------------------------------------------------------------------------------------------

    def issue(self, spec: SessionSpec, *, task_index: int = 0, now_s: float) -> SessionRecord:
        if spec.session_id in self._records:
            raise LedgerImbalance(f"session {spec.session_id} is issued already; session ids must be unique")
        record = SessionRecord(spec, task_index, since_s=now_s)
        self._records[spec.session_id] = record
        self.issued += 1
        self._counts[SessionState.RUNNING] += 1
        self.touch(record)
        self.check()
        return record

    def touch(self, record: SessionRecord) -> None:
        """Something of it changed beside its state."""
        self._changed[record.spec.session_id] = record

    def move(self, session_id: str, state: SessionState, reason: DropReason | None = None) -> SessionRecord:
        """One transition. Raises LedgerImbalance where it does not exist; ended sessions leave the records."""
        record = self._records.get(session_id)
        if record is None:
            raise LedgerImbalance(f"session {session_id} has ended or was never issued; it cannot become {state}")
        if state not in _NEXT[record.state]:
            raise LedgerImbalance(f"session {session_id} is {record.state}; it cannot become {state}")
        if (state is SessionState.DROPPED) != (reason is not None):
            raise LedgerImbalance(f"session {session_id}: a drop, and only a drop, has a reason; got {state}, {reason}")
        self._counts[record.state] -= 1
        record.state = state
        record.reason = reason
        if state in _ENDED:
            del self._records[session_id]
            record.trajectory = None
            self._end(Ended(state, reason, record.step, 1, record.num_tokens))
        else:
            self._counts[state] += 1
        self.touch(record)
        self.check()
        return record

    def roll_back(self, step: int) -> int:
        """What was trained after `step` was lost with the learner: the only way out of TRAINED. Returns how many
        sessions that were."""
        undone = [self._trained.pop(later) for later in list(self._trained) if later > step]
        for record in self._changed.values():
            if record.state is SessionState.TRAINED and record.step is not None and record.step > step:
                record.state, record.reason = SessionState.DROPPED, DropReason.ROLLED_BACK
        for sums in undone:
            self._counts[SessionState.TRAINED] -= sums["sessions"]
            self._end(Ended(SessionState.DROPPED, DropReason.ROLLED_BACK, None, sums["sessions"], sums["tokens"]))
        self._rolled_back_to = step if self._rolled_back_to is None else min(step, self._rolled_back_to)
        self.check()
        return sum(sums["sessions"] for sums in undone)

    def _end(self, ended: Ended) -> None:
        self._counts[ended.state] += ended.sessions
        if ended.reason is not None:
            self.dropped[ended.reason] += ended.sessions
            self.wasted_tokens[ended.reason] += ended.tokens
        else:
            sums = self._trained.setdefault(ended.step or 0, Counter())
            sums.update(sessions=ended.sessions, tokens=ended.tokens)

    # --- the journal ------------------------------------------------------------------------------------------------

    def take_changes(self) -> LedgerChanges:
        """What changed since the last call."""
        changes = LedgerChanges(self._rolled_back_to, tuple(self._changed.values()))
        self._changed, self._rolled_back_to = {}, None
        return changes

    def restore(self, records: Iterable[SessionRecord], ended: Iterable[Ended]) -> None:
        """Take over, into an empty ledger, the sessions that have not ended (in the order of issue) and the sums of
        those that have."""
        for record in records:
            self._records[record.spec.session_id] = record
            self._counts[record.state] += 1
            self.issued += 1
        for sums in ended:
            self._end(sums)
            self.issued += sums.sessions
        self.check()

    def check(self) -> None:
        """Raises LedgerImbalance where the invariant does not hold."""
        live = self.count(*LIVE_STATES)
        total = live + self._counts[SessionState.TRAINED] + self._counts[SessionState.DROPPED]
        if self.issued != total or live != len(self._records) or min(self._counts.values(), default=0) < 0:
            raise LedgerImbalance(f"the ledger does not balance: {self.snapshot()}, {len(self._records)} records")

    def snapshot(self) -> dict[str, int]:
        """`issued`, each state, `dropped`, and `dropped_<reason>` for every reason."""
        counts = {"issued": self.issued}
        counts |= {str(state): self._counts[state] for state in SessionState}
        counts |= {f"dropped_{reason}": self.dropped[reason] for reason in DropReason}
        return counts
