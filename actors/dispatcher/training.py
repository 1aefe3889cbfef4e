"""Training sessions from issue to optimizer step: ledger, admission, groups and buffer as one state machine.

Pure: no await, no clock, no message. The actor calls a method for each message that arrives, places what
`next_session` gives, cancels what `take_stopped` names, and journals what changed. Every session is trained at most
once: its record leaves the ledger when it ends, and what is unknown to the ledger is ignored and counted. Whatever a
peer may say twice (a sender that did not hear the answer, or hears it from a dispatcher that was restarted) changes
nothing the second time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any

from headrace.actors.dispatcher.admission import Admission
from headrace.actors.dispatcher.buffer import ReadyBuffer, ReadyGroup
from headrace.actors.dispatcher.groups import GroupBook, OpenGroup, identical, judge
from headrace.actors.dispatcher.issue import GroupIssuer
from headrace.actors.dispatcher.ledger import DropReason, Ledger, SessionRecord, SessionState
from headrace.actors.dispatcher.over_age import mask_group
from headrace.actors.dispatcher.restoring import restore_sessions
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.snapshot import Snapshot
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.versions import VersionSteps
from headrace.actors.session import Group, SessionSpec, Trajectory

_FAILURES = frozenset({DropReason.FAILED, DropReason.TIMED_OUT, DropReason.LOST})


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    groups: tuple[Group, ...]
    version_steps: dict[int, int]


class TrainingSessions:
    """`batch`: the groups that the learner has and has not reported, with the number of that batch."""

    def __init__(self, settings: TrainingSettings, tasks: TaskSource) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self.versions = VersionSteps()
        self.groups = GroupBook(settings.group_size)
        self.buffer = ReadyBuffer(settings.consumption)
        self.admission = Admission(settings.max_lag, settings.batch_sessions)
        self.learner_step = 0
        self.finished = False
        self.counters: Counter[str] = Counter()
        self.issuer = GroupIssuer(settings, tasks)
        self.pending: deque[str] = deque()
        self.batch: tuple[Group, ...] = ()
        self._stopped: list[tuple[str, int]] = []

    def facts(self) -> dict[str, Any]:
        """What a successor must know beside the sessions and versions, by name; JSON values."""
        return {
            "next_task": self.issuer.next_task,
            "num_groups": self.issuer.num_groups,
            "quarantined": dict(self.issuer.quarantined),
            "issued": self.ledger.issued,
            "learner_step": self.learner_step,
            "finished": self.finished,
            "parting_version": self.versions.parting[0],
            "parting_step": self.versions.parting[1],
            "counters": dict(self.counters),
        }

    def restore(self, snapshot: Snapshot, *, now_s: float) -> None:
        """Go on, from the state after the constructor, where the predecessor was at its last commit."""
        facts = snapshot.facts
        self.issuer.restore(
            next_task=facts["next_task"], num_groups=facts["num_groups"], quarantined=facts["quarantined"]
        )
        self.versions.restore(snapshot.versions, (facts["parting_version"], facts["parting_step"]))
        self.learner_step, self.finished = facts["learner_step"], facts["finished"]
        self.counters.update(facts["counters"])
        restored = restore_sessions(snapshot, self.issuer, self.ledger, self.groups, now_s=now_s)
        self.pending.extend(restored.pending)
        self.batch = restored.batch
        for ready in restored.ready:
            self.buffer.push(ready)
        self.ledger.wasted_tokens[DropReason.OVER_AGE] += self.counters["masked_tokens"]

    # --- issue ------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Sessions that admission allows to issue now."""
        return self.admission.room(
            version_step=self.versions.newest_step,
            trained_batches=self.learner_step,
            training_batches=bool(self.batch),
            open_sessions=self.ledger.num_open,
        )

    def next_session(self, now_s: float) -> SessionSpec | None:
        """The next session to place (it waits until `started`), or None. A group is issued only when its turn has
        come."""
        while self.pending:
            record = self.ledger.get(self.pending[0])
            if record is not None and record.state is SessionState.RUNNING and record.holder is None:
                return record.spec
            self.pending.popleft()
        if self.finished or not self.versions.any_served or self.room < self.settings.group_size:
            return None
        self._issue_group(now_s)
        record = self.ledger.get(self.pending[0])
        return record.spec if record is not None else None

    def started(self, session_id: str, environment: str, now_s: float) -> None:
        """A session has its slot."""
        record = self.ledger.get(session_id)
        if record is not None:
            record.holder, record.since_s, record.version_at_start = environment, now_s, self.versions.newest
            self.ledger.touch(record)

    def not_started(self, session_id: str) -> None:
        """The environment refused it before it began: it waits again, the attempt does not count."""
        record = self.ledger.get(session_id)
        if record is not None and record.state is SessionState.RUNNING and record.holder is not None:
            record.holder = None
            self.ledger.touch(record)
            self.pending.appendleft(session_id)

    def _issue_group(self, now_s: float) -> None:
        task_index, specs = self.issuer.next_group()
        self.groups.open(specs, self.issuer.num_groups - 1)
        for spec in specs:
            self.ledger.issue(spec, task_index=task_index, now_s=now_s)
            self.pending.append(spec.session_id)

    # --- what peers report ------------------------------------------------------------------------------------------

    def moved(self, session_id: str, attempt: int, grader: str) -> None:
        """A grader owns that attempt. Ignored where the grade came first, or another attempt has begun."""
        record = self.ledger.get(session_id)
        if record is not None and record.state is SessionState.RUNNING and record.spec.attempt == attempt:
            record.holder = grader
            self.ledger.move(session_id, SessionState.GRADING)

    def graded(self, trajectory: Trajectory) -> None:
        """Idempotent: a second grade of a session, or one of a session that has ended, is counted and ignored."""
        session_id = trajectory.spec.session_id
        record = self.ledger.get(session_id)
        if record is None or record.graded:
            self.counters["graded_twice_or_late"] += 1
            return
        if trajectory.spec.attempt != record.spec.attempt:
            # An attempt that was given up came through; the one after it is not needed.
            self._stopped.append((session_id, record.spec.attempt))
            record.spec = replace(record.spec, attempt=trajectory.spec.attempt)
        record.take_grade(trajectory)
        self.ledger.touch(record)
        if record.state is SessionState.RUNNING:
            self.ledger.move(session_id, SessionState.GRADING)
        self.counters["graded"] += 1
        has_reward = trajectory.reward is not None and math.isfinite(trajectory.reward)
        self.counters["graded_without_reward"] += not has_reward
        problem = trajectory.problem()
        if problem is not None:
            self.counters[f"filtered_{problem}"] += 1
        if problem is not None or not has_reward:
            self._lose(record, DropReason.FILTERED if problem is not None else DropReason.UNGRADED)
            return
        group = self.groups.grade(trajectory)
        if group is not None:
            self._complete(group)

    def failed(self, session_id: str, attempt: int, reason: str, detail: str) -> None:
        """An attempt ended without a grade: issued again, or dropped after `max_attempts` that failed by themselves or
        `max_losses` that were lost with their holder. Stale reports are ignored."""
        record = self.ledger.get(session_id)
        if record is None or record.graded or record.spec.attempt != attempt or self.finished:
            return
        self.counters[f"attempts_{reason}"] += 1
        record.losses += reason == DropReason.LOST
        failures = attempt + 1 - record.losses
        if failures < self.settings.max_attempts and record.losses < self.settings.max_losses:
            if record.state is SessionState.GRADING:
                self.ledger.move(session_id, SessionState.RUNNING)
            record.spec = replace(record.spec, attempt=attempt + 1)
            record.holder = None
            self.ledger.touch(record)
            self.pending.appendleft(session_id)
            return
        self._lose(record, DropReason(reason), detail)

    def attempt_of(self, session_id: str) -> int | None:
        """The attempt of a session that may still need another one: not graded, not ended. Else None."""
        record = self.ledger.get(session_id)
        return None if record is None or record.graded else record.spec.attempt

    def claim(self, session_id: str, attempt: int, holder: str, *, is_running: bool) -> bool:
        """After a restart of the dispatcher an environment (`is_running`) or a grader says that it has this attempt.
        False where that attempt is not wanted any more."""
        record = self.ledger.get(session_id)
        if record is None or record.graded or record.spec.attempt != attempt:
            return False
        record.holder = holder
        self.ledger.touch(record)
        state = SessionState.RUNNING if is_running else SessionState.GRADING
        if record.state is not state:
            self.ledger.move(session_id, state)
        return True

    def held_by(self, actor: str) -> list[SessionRecord]:
        """The ungraded sessions that an actor owns."""
        return [record for record in self.ledger.records() if record.holder == actor and not record.graded]

    def overdue(self, now_s: float, deadline_s: float) -> list[SessionRecord]:
        """Sessions whose attempt began more than `deadline_s` ago and has no grade yet."""
        return [
            record
            for record in self.ledger.records()
            if not record.graded and record.holder is not None and now_s - record.since_s > deadline_s
        ]

    def take_stopped(self) -> list[tuple[str, int]]:
        """Sessions, with their attempt, that were dropped while they may still run somewhere; each is named once."""
        stopped, self._stopped = self._stopped, []
        return stopped

    # --- the learner ------------------------------------------------------------------------------------------------

    def served(self, version: int, step: int) -> None:
        if self.versions.served(version, step):
            self._retire_over_age()

    def take_batch(self, step: int) -> ReadyBatch | None:
        """One batch for a learner that has done `step` optimizer steps, or None. What is too old goes first. A learner
        that asks while it has a batch never got it: it is given the same again."""
        self.learner_step = max(self.learner_step, step)
        if not self.batch:
            self._apply_over_age()
            taken = self.buffer.take(batch_sessions=self.settings.batch_sessions, group_size=self.settings.group_size)
            if taken is None:
                return None
            self._hand_out(taken)
        records = [self.ledger.get(t.spec.session_id) for group in self.batch for t in group.trajectories]
        oldest = min(record.oldest_version for record in records if record is not None)
        newest = max(record.newest_version for record in records if record is not None)
        return ReadyBatch(self.batch, self.versions.steps_between(oldest, newest))

    def _hand_out(self, taken: list[ReadyGroup]) -> None:
        self.counters["batches"] += 1
        for ready in taken:
            oldest_step = self.versions.step_of(ready.oldest_version)
            self.counters["groups_taken"] += 1
            self.counters["lag_in_flight_sum"] += ready.step_when_ready - oldest_step
            self.counters["lag_in_queue_sum"] += self.learner_step - ready.step_when_ready
            for trajectory in ready.group.trajectories:
                record = self.ledger.move(trajectory.spec.session_id, SessionState.TRAINING)
                record.batch = self.counters["batches"]
        self.batch = tuple(ready.group for ready in taken)

    def trained(self, step: int, session_ids: tuple[str, ...]) -> None:
        """These went into optimizer step `step`. What else was in their batch the learner left out."""
        self.learner_step = max(self.learner_step, step)
        handed = {t.spec.session_id for group in self.batch for t in group.trajectories}
        for session_id in session_ids:
            record = self.ledger.get(session_id)
            if record is None or record.state is not SessionState.TRAINING:
                self.counters["trained_twice_or_unknown"] += 1
                continue
            self._note_lag(record, step - 1)
            record.step = step
            self.ledger.move(session_id, SessionState.TRAINED)
        if not handed.isdisjoint(session_ids):
            self.batch = ()
            for session_id in sorted(handed.difference(session_ids)):
                self._drop(session_id, DropReason.FILTERED)
        self._retire_over_age()

    def roll_back(self, step: int, version: int) -> int:
        """The learner starts anew from `step`, having published `version` and those before it: what it trained later,
        and what it has, is lost. Returns how many sessions that are. Their tasks are not issued again."""
        num_lost = self.ledger.roll_back(step)
        self.versions.roll_back(step, version)
        for group in self.batch:
            for trajectory in group.trajectories:
                self._drop(trajectory.spec.session_id, DropReason.ROLLED_BACK)
                num_lost += 1
        self.batch = ()
        self.finished = self.finished and step >= self.learner_step
        self.learner_step = step
        return num_lost

    def finish(self) -> None:
        """No batch follows: everything that is still open is dropped as cancelled."""
        self.finished = True
        for record in list(self.ledger.records()):
            self._drop(record.spec.session_id, DropReason.CANCELLED)
        self.groups = GroupBook(self.settings.group_size)
        self.buffer = ReadyBuffer(self.settings.consumption)
        self.pending.clear()
        self.batch = ()

    # --- drops ------------------------------------------------------------------------------------------------------

    def _complete(self, open_group: OpenGroup) -> None:
        group = self.groups.close(open_group.group_id)
        self.counters["groups_complete"] += 1
        self.counters["groups_identical"] += identical(group)
        if self.settings.group_size > 1:
            verdict = judge(group, pass_reward=self.settings.pass_reward)
            self.counters[f"groups_{verdict}"] += 1
            if verdict != "useful" and self.settings.zero_variance == "drop":
                for trajectory in group.trajectories:
                    self._drop(trajectory.spec.session_id, DropReason.ZERO_VARIANCE)
                return
        for trajectory in group.trajectories:
            record = self.ledger.move(trajectory.spec.session_id, SessionState.READY)
            record.ready_order, record.ready_step = self.counters["groups_complete"], self.learner_step
        self.buffer.push(ReadyGroup.of(group, open_group.order, self.counters["groups_complete"], self.learner_step))

    def _drop(self, session_id: str, reason: DropReason) -> None:
        record = self.ledger.get(session_id)
        if record is None:
            return
        if not record.graded:
            self._stopped.append((session_id, record.spec.attempt))
        elif reason is DropReason.OVER_AGE:
            self._note_lag(record, self.learner_step)
        self.ledger.move(session_id, SessionState.DROPPED, reason)

    def _lose(self, record: SessionRecord, reason: DropReason, detail: str = "") -> None:
        """Drop one member; its group goes on with the others, or falls with it where too few are left."""
        self._drop(record.spec.session_id, reason)
        group = self.groups.lose(record.spec)
        if group is None:
            return
        if not self.groups.hopeless(group):
            self._complete(group)
            return
        if reason in _FAILURES:
            self.issuer.quarantine(group.task.task_id, f"{reason}: {detail}")
            reason = DropReason.QUARANTINED
        waiting = sorted(group.waiting)
        for trajectory in self.groups.close(group.group_id).trajectories:
            self._drop(trajectory.spec.session_id, reason)
        for session_id in waiting:
            self._drop(session_id, reason)

    def _apply_over_age(self) -> None:
        """What exceeds the hard limit if it is trained next is dropped, whole groups at a time, or masked, or let
        through."""
        policy, hard_lag = self.settings.over_age, self.settings.hard_lag
        if policy == "train":
            return
        too_old = self.buffer.remove_where(lambda ready: self._lag(ready.oldest_version) > hard_lag)
        for ready in too_old:
            group = ready.group
            if policy == "mask":
                group, gone = mask_group(group, self.versions.oldest_within(self.learner_step, hard_lag))
                for trajectory in gone:
                    self._drop(trajectory.spec.session_id, DropReason.OVER_AGE)
                if len(group.trajectories) >= self.groups.min_members:
                    self._note_masked(group)
                    self.buffer.push(ReadyGroup.of(group, ready.order, ready.arrival, ready.step_when_ready))
                    continue
            for trajectory in group.trajectories:
                self._drop(trajectory.spec.session_id, DropReason.OVER_AGE)

    def _note_masked(self, group: Group) -> None:
        for trajectory in group.trajectories:
            record = self.ledger.get(trajectory.spec.session_id)
            if record is not None:
                before = record.num_tokens
                record.take_grade(trajectory)
                self.ledger.touch(record)
                self.ledger.wasted_tokens[DropReason.OVER_AGE] += before - record.num_tokens
                self.counters["masked_tokens"] += before - record.num_tokens

    def _retire_over_age(self) -> None:
        """Policy `cancel`: stop sessions that would be over age when they end. It falls on long ones: see the
        report's lengths."""
        if self.settings.over_age != "cancel":
            return
        for record in list(self.ledger.records()):
            running = record.state is SessionState.RUNNING and record.holder is not None
            if running and self._lag(record.version_at_start) > self.settings.hard_lag:
                self._lose(record, DropReason.OVER_AGE)

    def _lag(self, version: int) -> int:
        return self.learner_step - self.versions.step_of(version)

    def _note_lag(self, record: SessionRecord, step: int) -> None:
        record.lag = step - self.versions.step_of(record.oldest_version)
        record.token_lags = {}
        for version, count in (record.version_tokens or {}).items():
            lag = step - self.versions.step_of(version)
            record.token_lags[lag] = record.token_lags.get(lag, 0) + count
