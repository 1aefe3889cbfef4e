"""The dispatcher actor: messages in, messages out, around the state machines of this folder.

It takes news of sessions, answers the learner, and ends the run. Every decision is made in `training.py`,
`evaluation.py` and `placement.py`, which never wait. Four tasks go on beside the handlers: one places sessions
(`seating.py`), woken by whatever may have changed something; one evaluates (`evaluator.py`) and ends the run; one
keeps time (`housekeeping.py`); one writes the journal (`commits.py`).

A handler changes the state machines in its first step and then, where its answer gives the sender's word away, waits
for the journal: such handlers are concurrent, so that one transaction serves many. A dispatcher that was killed goes on
from the journal (`on_start`): what it had acknowledged is there, what it had not is said again by whoever has it.
"""

from __future__ import annotations

import asyncio
import logging

from headrace.actors.dispatcher.buffer import Consumption, OverAge
from headrace.actors.dispatcher.commits import Commits
from headrace.actors.dispatcher.curriculum import BySuccess
from headrace.actors.dispatcher.evaluation import EvaluationSettings
from headrace.actors.dispatcher.evaluator import Evaluator
from headrace.actors.dispatcher.feeding import Feeding
from headrace.actors.dispatcher.housekeeping import Housekeeping
from headrace.actors.dispatcher.journal import IN_MEMORY, Journal
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.reconciling import ENVIRONMENT, GRADER, reconcile
from headrace.actors.dispatcher.seating import Seating
from headrace.actors.dispatcher.settings import Mode, TrainingSettings, ZeroVariance, check_at_least
from headrace.actors.dispatcher.snapshot import Snapshot
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.messages import (
    Accepted,
    Batch,
    BatchTrained,
    LearnerResumed,
    NextBatch,
    RunFinished,
    SessionFailed,
    SessionGraded,
    SessionsMoved,
    TrainingFinished,
    VersionServed,
)
from headrace.transport import (
    Actor,
    Context,
    MailboxBound,
    PeerDown,
    PeerLeaving,
    PeerUp,
    TransportError,
    handles,
    insist,
)
from headrace.transport.directory import role_of

logger = logging.getLogger(__name__)

_SHOWN = 3
_END_TIMEOUT_S = 30.0
_END_PATIENCE_S = 300.0


class Dispatcher(Actor):
    """`tasks`: where tasks come from. `batch_sessions`: sessions of one optimizer step, a multiple of `group_size`.
    `temperature`, `max_tokens` (per turn): how training sessions are sampled. `evaluation` None: none is made.
    `session_timeout_s`: an attempt without a grade is given up after that long (environments have their own, shorter
    deadlines). `stall_log_s`: a learner that waits longer is told about in the log, with the ids of what is pending.
    `max_attempts`, `max_losses`: of a session, before its task is set aside: those that failed by themselves, and those
    that were lost with whoever had them. `group_extra`, `group_deadline_s`: see TrainingSettings.
    `ledger_path`: the journal; what is found there is gone on from. None keeps it in memory. `run_id`: of the launch;
    in a journal of another one, what nobody has was ended with the run, and no limit is touched.
    `order`: in which tasks are issued, and which are set aside; None: in the source's, all.
    `only_evaluates`: there is no learner; once `num_evaluators` are there, what they serve is evaluated, and the run is
    over.
    """

    mailbox = MailboxBound(capacity=8192)

    def __init__(
        self,
        *,
        tasks: TaskSource,
        group_size: int,
        batch_sessions: int,
        max_lag_versions: int = 4,
        hard_lag_versions: int | None = None,
        over_age: OverAge = "drop",
        consumption: Consumption = "oldest_ready",
        zero_variance: ZeroVariance = "drop",
        mode: Mode = "async",
        max_attempts: int = 3,
        max_losses: int = 20,
        group_extra: int = 0,
        group_deadline_s: float | None = None,
        pass_reward: float = 1.0,
        temperature: float = 1.0,
        max_tokens: int = 64,
        seed: int = 0,
        order: BySuccess | None = None,
        evaluation: EvaluationSettings | None = None,
        only_evaluates: bool = False,
        num_evaluators: int = 1,
        ledger_path: str | None = None,
        run_id: str = "",
        session_timeout_s: float = 900.0,
        metrics_every_s: float = 2.0,
        stall_log_s: float = 30.0,
    ) -> None:
        settings = TrainingSettings(
            group_size=group_size,
            batch_sessions=batch_sessions,
            max_lag_versions=max_lag_versions,
            hard_lag_versions=hard_lag_versions,
            over_age=over_age,
            consumption=consumption,
            zero_variance=zero_variance,
            mode=mode,
            max_attempts=max_attempts,
            max_losses=max_losses,
            group_extra=group_extra,
            group_deadline_s=group_deadline_s,
            pass_reward=pass_reward,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
        )
        if order is not None and order.target is not None and mode == "sync":
            raise ValueError(
                f"dispatcher.order.target must be null with mode=sync, got {order.target}: there a learner that starts "
                "again draws its tasks anew in their order; use mode=async, or target: null"
            )
        check_at_least("num_evaluators", num_evaluators, 1)
        if only_evaluates and (evaluation is None or not evaluation.is_made):
            raise ValueError("evaluation.num_prompts must be >= 1, got none; a run that only evaluates has no other")
        check_at_least("metrics_every_s", metrics_every_s, 0.01)
        check_at_least("session_timeout_s", session_timeout_s, 0.01)
        check_at_least("stall_log_s", stall_log_s, 0.01)
        self._tasks = tasks
        self._ledger_path = ledger_path or IN_MEMORY
        self._run_id = run_id
        self.training = TrainingSessions(settings, tasks, order)
        self.placement = Placement()
        self.evaluator = Evaluator(evaluation, seed=seed, max_tokens=max_tokens)
        self.commits = Commits(self._write)
        self.seating = Seating(self.training, self.evaluator, self.placement, self._fail, self.commits.durable)
        self.feeding = Feeding(
            self.training,
            self.placement,
            stall_log_s=stall_log_s,
            wake=self._changed,
            durable=self.commits.durable,
        )
        self.housekeeping = Housekeeping(
            self.training,
            self.evaluator,
            self.placement,
            self.seating,
            fail=self._fail,
            changed=self._changed,
            metrics_every_s=metrics_every_s,
            session_timeout_s=session_timeout_s,
        )
        self._num_evaluators = num_evaluators if only_evaluates else 0
        self._incarnations: dict[str, str] = {}
        self._leaving: set[str] = set()
        self._journal: Journal | None = None
        self._writing: asyncio.Task[None] | None = None

    async def on_start(self, context: Context) -> None:
        self._journal = Journal(self._ledger_path)
        self.housekeeping.begin(context)
        self.seating.begin(context)
        await self.evaluator.begin(
            context,
            self._tasks,
            wake=self.seating.wake,
            stop_sessions=self.seating.stop_sessions,
            durable=self.commits.durable,
            counted=self.training.versions.counted,
        )
        context.watch(ENVIRONMENT)
        context.watch(GRADER)
        if self.evaluator.role is not None:
            context.watch(self.evaluator.role)
        snapshot = self._journal.load()
        if snapshot is not None:
            await self._resume(context, snapshot)
        self._writing = context.spawn(self.commits.run(context.clock), "write the journal")
        context.spawn(self.seating.pump(), "place sessions")
        context.spawn(self.housekeeping.run(), "metrics and deadlines")
        if self.training.settings.group_deadline_s is not None:
            context.spawn(self._complete_late_groups(self.training.settings.group_deadline_s), "late groups")
        context.spawn(self._evaluate_and_end(), "evaluate")
        if self._num_evaluators:
            context.spawn(self.evaluator.begin_alone(self._num_evaluators), "wait for evaluators")

    async def on_stop(self) -> None:
        """What is open stays so in the journal: the run may be resumed."""
        if self._writing is not None:
            self._writing.cancel()
        if self._journal is not None:
            self.commits.now()
            self._journal.close()

    # --- the journal ------------------------------------------------------------------------------------------------

    async def _resume(self, context: Context, snapshot: Snapshot) -> None:
        """Go on where the predecessor was; nobody finds this actor before it is done."""
        same_run = snapshot.facts.get("run") == self._run_id
        self.training.restore(snapshot, now_s=context.clock.time(), same_run=same_run)
        serving = self.training.versions.serving
        self.evaluator.restore(snapshot.facts, life=snapshot.num_lives, over=same_run, serving=serving)
        found = await reconcile(context, self.training, self.placement)
        self._incarnations |= found.incarnations
        if same_run:
            self._lose(found.lost, "nobody had it when the dispatcher was restarted")
        else:
            for session_id in reversed(found.lost):
                self.training.interrupted(session_id)
        for environment, sessions in found.unwanted.items():
            self.seating.cancel(environment, sessions)
        self._changed()

    def _write(self) -> None:
        assert self._journal is not None, "nothing is committed before on_start opened it"
        training = self.training
        facts = training.facts() | self.evaluator.facts() | {"run": self._run_id}
        self._journal.write(training.ledger.take_changes(), training.versions.take_changes(), facts)

    def _changed(self) -> None:
        self.commits.soon()
        self.seating.wake()

    # --- environments and graders -----------------------------------------------------------------------------------

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        if self._incarnations.get(message.name) == message.incarnation:
            return  # it said so itself, when this dispatcher was restarted
        role = role_of(message.name)
        if role == self.evaluator.role:
            self.evaluator.joined()
            return
        if role == GRADER:
            self._incarnations[message.name] = message.incarnation
            return
        slots = message.metadata.get("slots")
        if not isinstance(slots, int) or slots < 1:
            logger.error(
                "%s announces slots=%r; an environment must announce an integer >= 1. It gets no sessions",
                message.name,
                slots,
            )
            return
        self._incarnations[message.name] = message.incarnation
        self._lose(self.placement.join(message.name, slots), f"{message.name} was replaced")
        self._changed()

    @handles(PeerLeaving)
    async def peer_leaving(self, message: PeerLeaving) -> None:
        """An environment finishes what it has, and gets no more."""
        if role_of(message.name) == ENVIRONMENT and self._incarnations.get(message.name) == message.incarnation:
            self._leaving.add(message.name)
            self.placement.close(message.name)

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        name = message.name
        if self._incarnations.get(name) != message.incarnation:
            return
        del self._incarnations[name]
        seated = self.placement.leave(name)
        held = [record.spec.session_id for record in self.training.held_by(name)] + self.evaluator.held_by(name)
        if name in self._leaving:
            self._leaving.remove(name)
            self._take_back(sorted({*seated, *held}), name)
        else:
            self._lose(sorted({*seated, *held}), f"{name} is gone: {message.reason}")
        self._changed()

    @handles(SessionsMoved)
    async def sessions_moved(self, message: SessionsMoved) -> Accepted:
        """May be said twice, also after the attempt has ended."""
        for session_id, attempt in message.sessions:
            self.seating.left(session_id, attempt)
            self.seating.owner(session_id).moved(session_id, attempt, message.grader)
        if message.incarnation and self._incarnations.get(message.grader) != message.incarnation:
            held = [s for s, attempt in message.sessions if self.seating.owner(s).attempt_of(s) == attempt]
            self._lose(held, f"{message.grader}, to which they went, is gone")
        self._changed()
        return Accepted()

    @handles(SessionFailed, concurrent=True)
    async def session_failed(self, message: SessionFailed) -> Accepted:
        self.seating.left(message.session_id, message.attempt)
        self._fail(message.session_id, message.attempt, message.reason, message.detail)
        self._changed()
        await self.commits.durable()
        return Accepted()

    @handles(SessionGraded, concurrent=True)
    async def session_graded(self, message: SessionGraded) -> Accepted:
        if self.evaluator.owns(message.trajectory.spec.session_id):
            self.evaluator.graded(message.trajectory)
        else:
            self.training.graded(message.trajectory, self.context.clock.time())
            self.feeding.group_ready()
        self._changed()
        await self.commits.durable()
        return Accepted()

    async def _complete_late_groups(self, deadline_s: float) -> None:
        """For the actor's life. A group goes on at most a twentieth of its deadline too late."""
        while True:
            await self.context.clock.sleep(deadline_s / 20)
            if self.training.complete_late(self.context.clock.time()):
                self.feeding.group_ready()
                self._changed()

    def _take_back(self, session_ids: list[str], environment: str) -> None:
        """What an environment had not finished when it had to leave waits again: no attempt, no loss."""
        if session_ids:
            logger.info("%d sessions that %s leaves behind wait again", len(session_ids), environment)
        for session_id in session_ids:
            self.seating.owner(session_id).not_started(session_id)

    def _lose(self, session_ids: list[str], detail: str) -> None:
        """Sessions whose holder is gone: tried again elsewhere, and told of in one line. A graded one is safe here."""
        attempts = {s: self.seating.owner(s).attempt_of(s) for s in session_ids}
        lost = {session_id: attempt for session_id, attempt in attempts.items() if attempt is not None}
        if lost:
            logger.info("%d sessions are lost (e.g. %s): %s", len(lost), ", ".join(list(lost)[:_SHOWN]), detail)
        for session_id, attempt in lost.items():
            self._take_failure(session_id, attempt, "lost", detail)

    def _fail(self, session_id: str, attempt: int, reason: str, detail: str) -> None:
        logger.info("session %s, attempt %d: %s: %s", session_id, attempt + 1, reason, detail)
        self._take_failure(session_id, attempt, reason, detail)

    def _take_failure(self, session_id: str, attempt: int, reason: str, detail: str) -> None:
        self.seating.owner(session_id).failed(session_id, attempt, reason, detail)
        self.feeding.group_ready()  # the rest of its group may be ready without it
        self.housekeeping.tell_quarantined()

    # --- the learner and the parameter server -----------------------------------------------------------------------

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        first = not self.training.versions.serving
        self.training.served(message.version, message.step)
        if first:  # rollouts begin: rates are measured from here
            self.housekeeping.report()
        self.evaluator.served(self.training.versions.counted(message.version, message.step))
        self._changed()
        return Accepted()

    @handles(NextBatch, concurrent=True)
    async def next_batch(self, message: NextBatch) -> Batch:
        return await self.feeding.next_batch(message, self.context.clock)

    @handles(BatchTrained, concurrent=True)
    async def batch_trained(self, message: BatchTrained) -> Accepted:
        self.training.batches.trained(message.step, message.session_ids)
        self._changed()
        await self.commits.durable()
        return Accepted()

    @handles(LearnerResumed, concurrent=True)
    async def learner_resumed(self, message: LearnerResumed) -> Accepted:
        was_finished, was_at = self.training.finished, self.training.learner_step
        assert self._journal is not None, "it is open from on_start on"
        self.commits.now()  # what the journal is asked for is all there
        num_lost = self.training.roll_back(
            message.step,
            message.version,
            tasks=self._journal.tasks_trained_after(message.step),
            next_task=self._journal.next_task_after(message.step),
            goes_on=message.goes_on,
        )
        self.evaluator.roll_back(message.step, reopened=was_finished and not self.training.finished)
        logger.warning(
            "the learner goes on from step %d (it was at %d); %d sessions that it had trained or had in hand since are "
            "dropped as rolled_back, and their tasks issued again",
            message.step,
            was_at,
            num_lost,
        )
        self._changed()
        await self.commits.durable()
        return Accepted()

    @handles(TrainingFinished, concurrent=True)
    async def training_finished(self, message: TrainingFinished) -> Accepted:
        self.training.finish()
        self.evaluator.finish(message.version)
        self.feeding.group_ready()
        self._changed()
        await self.commits.durable()
        return Accepted()

    async def _evaluate_and_end(self) -> None:
        """Evaluates whenever it is due; after the final one the run is over."""
        await self.evaluator.run_until_finished()
        await self.commits.durable()
        try:
            await self.context.tell("monitor", self.housekeeping.metrics())
        except TransportError as error:
            logger.warning("the monitor did not get the last figures of the ledger: %s", error)
        finished = RunFinished("training and evaluation are done")
        await insist(self.context, "supervisor", finished, timeout_s=_END_TIMEOUT_S, patience_s=_END_PATIENCE_S)
