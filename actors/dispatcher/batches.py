"""The learner's side of the training sessions: what is handed out, what was trained, what is too old by then.

Pure. `TrainingSessions` gives it complete groups and tells it what the learner reports; how a session ends, and what
becomes of its group, stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headrace.actors.dispatcher.buffer import ReadyBuffer, ReadyGroup
from headrace.actors.dispatcher.ledger import DropReason, Ledger, SessionRecord, SessionState
from headrace.actors.dispatcher.over_age import mask_group
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.versions import VersionSteps
from headrace.actors.session import Group


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """See Batch."""

    groups: tuple[Group, ...]
    version_steps: dict[int, int]
    num_failed: int


class Batches:
    """`batch`: the groups that the learner has and has not reported. `learner_step`: optimizer steps that it has done.
    `buffer`: complete groups that wait. `drop(session id, reason)` ends a session, `lose(record, reason)` one of an
    open group; `min_members`: what is left of a group must have so many."""

    def __init__(
        self,
        settings: TrainingSettings,
        ledger: Ledger,
        versions: VersionSteps,
        counters: Counter[str],
        *,
        min_members: int,
        drop: Callable[[str, DropReason], None],
        lose: Callable[[SessionRecord, DropReason], None],
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._versions = versions
        self._counters = counters
        self._min_members = min_members
        self._drop = drop
        self._lose = lose
        self.buffer = ReadyBuffer(settings.consumption)
        self.batch: tuple[Group, ...] = ()
        self.learner_step = 0
        self._num_failed = 0

    def take(self, step: int) -> ReadyBatch | None:
        """One batch for a learner that has done `step` optimizer steps, or None. What is too old goes first. A learner
        that asks while it has a batch never got it: it is given the same again."""
        self.learner_step = max(self.learner_step, step)
        if not self.batch:
            self._apply_over_age()
            taken = self.buffer.take(batch_sessions=self._settings.batch_sessions, group_size=self._settings.group_size)
            if taken is None:
                return None
            self._hand_out(taken)
        records = [self._ledger.get(t.spec.session_id) for group in self.batch for t in group.trajectories]
        oldest = min(record.oldest_version for record in records if record is not None)
        newest = max(record.newest_version for record in records if record is not None)
        return ReadyBatch(self.batch, self._versions.steps_between(oldest, newest), self._num_failed)

    def _hand_out(self, taken: list[ReadyGroup]) -> None:
        self._counters["batches"] += 1
        failed = sum(self._counters[f"attempts_{reason}"] for reason in (DropReason.FAILED, DropReason.TIMED_OUT))
        self._num_failed = failed - self._counters["failures_told"]
        self._counters["failures_told"] = failed
        for ready in taken:
            oldest_step = self._versions.step_of(ready.oldest_version)
            self._counters["groups_taken"] += 1
            self._counters["lag_in_flight_sum"] += ready.step_when_ready - oldest_step
            self._counters["lag_in_queue_sum"] += self.learner_step - ready.step_when_ready
            for trajectory in ready.group.trajectories:
                record = self._ledger.move(trajectory.spec.session_id, SessionState.TRAINING)
                record.batch = self._counters["batches"]
        # In the order of issue, whoever was ready first: sums over the batch then have one order of their terms.
        self.batch = tuple(ready.group for ready in sorted(taken, key=lambda ready: ready.order))

    def trained(self, step: int, session_ids: tuple[str, ...]) -> None:
        """These went into optimizer step `step`. What else was in their batch the learner left out."""
        self.learner_step = max(self.learner_step, step)
        handed = {t.spec.session_id for group in self.batch for t in group.trajectories}
        for session_id in session_ids:
            record = self._ledger.get(session_id)
            if record is None or record.state is not SessionState.TRAINING:
                self._counters["trained_twice_or_unknown"] += 1
                continue
            self.note_lag(record, step - 1)
            record.step = step
            self._ledger.move(session_id, SessionState.TRAINED)
        if not handed.isdisjoint(session_ids):
            self.batch = ()
            for session_id in sorted(handed.difference(session_ids)):
                self._drop(session_id, DropReason.FILTERED)
        self.retire_over_age()

    def roll_back(self, step: int) -> int:
        """The learner goes on from `step` without the batch that it had. Returns how many sessions that were."""
        lost = [trajectory.spec.session_id for group in self.batch for trajectory in group.trajectories]
        for session_id in lost:
            self._drop(session_id, DropReason.ROLLED_BACK)
        self.batch = ()
        self.learner_step = step
        return len(lost)

    def clear(self) -> None:
        """Nothing follows."""
        self.buffer = ReadyBuffer(self._settings.consumption)
        self.batch = ()

    # --- age --------------------------------------------------------------------------------------------------------

    def _apply_over_age(self) -> None:
        """What exceeds the hard limit if it is trained next is dropped, whole groups at a time, or masked, or let
        through."""
        policy, hard_lag = self._settings.over_age, self._settings.hard_lag
        if policy == "train":
            return
        too_old = self.buffer.remove_where(lambda ready: self._lag(ready.oldest_version) > hard_lag)
        for ready in too_old:
            group = ready.group
            if policy == "mask":
                group, gone = mask_group(group, self._versions.oldest_within(self.learner_step, hard_lag))
                for trajectory in gone:
                    self._drop(trajectory.spec.session_id, DropReason.OVER_AGE)
                if len(group.trajectories) >= self._min_members:
                    self._note_masked(group)
                    self.buffer.push(ReadyGroup.of(group, ready.order, ready.arrival, ready.step_when_ready))
                    continue
            for trajectory in group.trajectories:
                self._drop(trajectory.spec.session_id, DropReason.OVER_AGE)

    def _note_masked(self, group: Group) -> None:
        for trajectory in group.trajectories:
            record = self._ledger.get(trajectory.spec.session_id)
            if record is not None:
                before = record.num_tokens
                record.take_grade(trajectory)
                self._ledger.touch(record)
                self._ledger.wasted_tokens[DropReason.OVER_AGE] += before - record.num_tokens
                self._counters["masked_tokens"] += before - record.num_tokens

    def retire_over_age(self) -> None:
        """Policy `cancel`: stop sessions that would be over age when they end. It falls on long ones: see the
        report's lengths."""
        if self._settings.over_age != "cancel":
            return
        for record in list(self._ledger.records()):
            running = record.state is SessionState.RUNNING and record.holder is not None
            if running and self._lag(record.version_at_start) > self._settings.hard_lag:
                self._lose(record, DropReason.OVER_AGE)

    def _lag(self, version: int) -> int:
        return self.learner_step - self._versions.step_of(version)

    def note_lag(self, record: SessionRecord, step: int) -> None:
        record.lag = step - self._versions.step_of(record.oldest_version)
        record.token_lags = {}
        for version, count in (record.version_tokens or {}).items():
            lag = step - self._versions.step_of(version)
            record.token_lags[lag] = record.token_lags.get(lag, 0) + count
