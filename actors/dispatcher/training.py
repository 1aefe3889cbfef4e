"""Training sessions from issue to optimizer step: ledger, admission, groups and batches as one state machine.

Pure: no await, no clock, no message. The actor calls a method for each message that arrives, places what
`next_session` gives, cancels what `take_stopped` names, and journals what changed. Every session is trained at most
once: its record leaves the ledger when it ends, and what is unknown to the ledger is ignored and counted. Whatever a
peer may say twice (a sender that did not hear the answer, or hears it from a dispatcher that was restarted) changes
nothing the second time.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.actors.dispatcher.admission import Admission
from headrace.actors.dispatcher.batches import Batches
from headrace.actors.dispatcher.buffer import ReadyGroup
from headrace.actors.dispatcher.curriculum import TaskOrder
from headrace.actors.dispatcher.groups import GroupBook, OpenGroup, identical, judge, passed
from headrace.actors.dispatcher.issue import GroupIssuer
from headrace.actors.dispatcher.ledger import DropReason, Ledger, SessionRecord, SessionState
from headrace.actors.dispatcher.restoring import restore_sessions
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.snapshot import Snapshot
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.versions import VersionSteps
from headrace.actors.session import SessionSpec, Trajectory

_FAILURES = frozenset({DropReason.FAILED, DropReason.TIMED_OUT, DropReason.LOST})


class TrainingSessions:
    """Everything between the task source and the optimizer step; the learner's side of it is `batches`."""

    def __init__(self, settings: TrainingSettings, tasks: TaskSource, order: TaskOrder | None = None) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self.versions = VersionSteps()
        self.groups = GroupBook(settings.group_size)
        self.admission = Admission(settings.max_lag, settings.batch_sessions)
        self.finished = False
        self.cancelled: list[int] = []
        """tasks whose groups were open when training ended: issued again where it goes on after all"""
        self.counters: Counter[str] = Counter()
        self.issuer = GroupIssuer(settings, tasks, order)
        self.pending: deque[str] = deque()
        self.batches = Batches(
            settings,
            self.ledger,
            self.versions,
            self.counters,
            min_members=self.groups.min_members,
            drop=self._drop,
            lose=self._lose,
        )
        self._stopped: list[tuple[str, int]] = []

    @property
    def learner_step(self) -> int:
        """Optimizer steps that the learner has done."""
        return self.batches.learner_step

    def facts(self) -> dict[str, Any]:
        """What a successor must know beside the sessions and versions, by name; JSON values."""
        return {
            "next_task": self.issuer.next_task,
            "again": list(self.issuer.again),
            "num_groups": self.issuer.num_groups,
            "quarantined": dict(self.issuer.quarantined),
            "order": self.issuer.order.state_dict(),
            "issued": self.ledger.issued,
            "learner_step": self.learner_step,
            "finished": self.finished,
            "cancelled": list(self.cancelled),
            "serving": self.versions.serving,
            "parting_version": self.versions.parting[0],
            "parting_step": self.versions.parting[1],
            "counters": dict(self.counters),
        }

    def restore(self, snapshot: Snapshot, *, now_s: float, same_run: bool = True) -> None:
        """Go on, from the state after the constructor, where the predecessor was at its last commit. same_run: whether
        it was of this launch, whose generators may be serving."""
        facts = snapshot.facts
        self.issuer.restore(
            next_task=facts["next_task"],
            again=facts.get("again", []),
            num_groups=facts["num_groups"],
            quarantined=facts["quarantined"],
            order=facts.get("order", {}),
        )
        parting = (facts["parting_version"], facts["parting_step"])
        self.versions.restore(snapshot.versions, parting, serving=same_run and facts.get("serving", True))
        self.batches.learner_step, self.finished = facts["learner_step"], facts["finished"]
        self.cancelled = list(facts.get("cancelled", []))
        self.counters.update(facts["counters"])
        restored = restore_sessions(snapshot, self.issuer, self.ledger, self.groups, now_s=now_s)
        self.pending.extend(restored.pending)
        self.batches.batch = restored.batch
        for ready in restored.ready:
            self.batches.buffer.push(ready)
        self.ledger.wasted_tokens[DropReason.OVER_AGE] += self.counters["masked_tokens"]

    # --- issue ------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Sessions that admission allows to issue now."""
        return self.admission.room(
            version_step=self.versions.newest_step,
            trained_batches=self.learner_step,
            training_batches=bool(self.batches.batch),
            open_sessions=self.ledger.num_open - self.groups.surplus,
        )

    def next_session(self, now_s: float) -> SessionSpec | None:
        """The next session to place (it waits until `started`), or None. A group is issued only when its turn has
        come."""
        if not self.versions.serving:
            return None
        while self.pending:
            record = self.ledger.get(self.pending[0])
            if record is not None and record.state is SessionState.RUNNING and record.holder is None:
                return record.spec
            self.pending.popleft()
        if self.finished or self.room < self.settings.group_size:
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
        self.groups.open(specs, self.issuer.num_groups - 1, now_s)
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

    def graded(self, trajectory: Trajectory, now_s: float = 0.0) -> None:
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
            self._complete(group, now_s)

    def complete_late(self, now_s: float) -> bool:
        """Groups past their deadline go on with the members that are graded. Whether there were any."""
        deadline_s = self.settings.group_deadline_s
        late = [] if deadline_s is None else self.groups.late(now_s - deadline_s)
        for group in late:
            self.counters["groups_short"] += 1
            self._complete(group, now_s)
        return bool(late)

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

    def interrupted(self, session_id: str) -> None:
        """Whoever had it ended with the whole run: it waits for another attempt, and no limit is touched."""
        record = self.ledger.get(session_id)
        if record is None or record.graded:
            return
        if record.state is SessionState.GRADING:
            self.ledger.move(session_id, SessionState.RUNNING)
        record.spec = replace(record.spec, attempt=record.spec.attempt + 1)
        record.losses += 1  # so that it is no failure of its own
        record.holder = None
        self.ledger.touch(record)
        self.pending.appendleft(session_id)

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
            self.batches.retire_over_age()

    def roll_back(self, step: int, version: int, *, tasks: Sequence[int], next_task: int, goes_on: bool = True) -> int:
        """The learner starts anew from `step`, having published `version` and those before it: what it trained later,
        and what it has, is lost. Returns how many sessions that are. `tasks`: of what it trained later; they, and those
        of what it has, are issued again before any other, as new groups with the seeds of the old ones. goes_on: see
        LearnerResumed.

        In sync mode all begins anew behind `step`: what is open is lost too, and tasks are drawn from `next_task` on,
        in their order. A run that was interrupted then goes on exactly as it would have."""
        num_lost = self.ledger.roll_back(step)
        self.versions.roll_back(step, version)
        self.finished = self.finished and not goes_on
        held = [record for record in self.ledger.records() if record.state is SessionState.TRAINING]
        again = [*tasks, *(record.task_index for record in held)]
        num_lost += self.batches.roll_back(step)
        if self.settings.mode == "sync" and not self.finished:
            num_lost += self._drop_open(DropReason.ROLLED_BACK)
            self.issuer.rewind(next_task)
        elif not self.finished:
            self.issuer.issue_again([*again, *self.cancelled])
        if not self.finished:
            self.cancelled = []
        return num_lost

    def _drop_open(self, reason: DropReason) -> int:
        """Returns how many."""
        records = list(self.ledger.records())
        for record in records:
            self._drop(record.spec.session_id, reason)
        self.groups = GroupBook(self.settings.group_size)
        self.batches.clear()
        self.pending.clear()
        return len(records)

    def finish(self) -> None:
        """No batch follows: everything that is still open is dropped as cancelled."""
        self.finished = True
        self.cancelled += dict.fromkeys(record.task_index for record in self.ledger.records())
        self._drop_open(DropReason.CANCELLED)

    # --- drops ------------------------------------------------------------------------------------------------------

    def _complete(self, open_group: OpenGroup, now_s: float = 0.0) -> None:
        """What it still waits for is cancelled. Its time so far is counted: that falls on long sessions."""
        group = self.groups.close(open_group.group_id)
        for session_id in sorted(open_group.waiting):
            record = self.ledger.get(session_id)
            if record is not None and record.holder is not None:
                self.counters["stragglers_begun"] += 1
                self.counters["straggler_ms_sum"] += round(1000 * (now_s - record.since_s))
            self._drop(session_id, DropReason.STRAGGLER)
        self.counters["sessions_kept"] += len(group.trajectories)
        self.counters["kept_ms_sum"] += sum(round(1000 * t.timings_s.get("total", 0.0)) for t in group.trajectories)
        self.counters["groups_complete"] += 1
        self.counters["groups_identical"] += identical(group)
        if self.settings.group_size > 1:
            verdict = judge(group, pass_reward=self.settings.pass_reward)
            self.counters[f"groups_{verdict}"] += 1
            self.issuer.order.judged(open_group.task, passed(group, pass_reward=self.settings.pass_reward), verdict)
            if verdict != "useful" and self.settings.zero_variance == "drop":
                for trajectory in group.trajectories:
                    self._drop(trajectory.spec.session_id, DropReason.ZERO_VARIANCE)
                return
        for trajectory in group.trajectories:
            record = self.ledger.move(trajectory.spec.session_id, SessionState.READY)
            record.ready_order, record.ready_step = self.counters["groups_complete"], self.learner_step
        self.batches.buffer.push(
            ReadyGroup.of(group, open_group.order, self.counters["groups_complete"], self.learner_step)
        )

    def _drop(self, session_id: str, reason: DropReason) -> None:
        record = self.ledger.get(session_id)
        if record is None:
            return
        if not record.graded:
            self._stopped.append((session_id, record.spec.attempt))
        elif reason is DropReason.OVER_AGE:
            self.batches.note_lag(record, self.learner_step)
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
