"""The dispatcher actor: messages in, messages out, around the state machines of this folder.

It takes news of sessions, answers the learner, and ends the run. Every decision is made in `training.py`,
`evaluation.py` and `placement.py`, which never wait. Three tasks go on beside the handlers: one places sessions
(`seating.py`), woken by whatever may have changed something; one evaluates (`evaluator.py`) and ends the run; one
keeps time (metrics, overdue sessions, the journal).
"""

from __future__ import annotations

import asyncio
import logging

from headrace.actors.dispatcher.buffer import Consumption, OverAge
from headrace.actors.dispatcher.evaluation import EvaluationSettings
from headrace.actors.dispatcher.evaluator import Evaluator
from headrace.actors.dispatcher.gauges import LongWait, describe_wait, gauges
from headrace.actors.dispatcher.journal import LedgerJournal
from headrace.actors.dispatcher.ledger import SessionState
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.seating import Seating
from headrace.actors.dispatcher.settings import Mode, TrainingSettings, ZeroVariance, check_at_least
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.messages import (
    Accepted,
    Batch,
    BatchTrained,
    Metrics,
    NextBatch,
    RunFinished,
    SessionFailed,
    SessionGraded,
    SessionsMoved,
    TrainingFinished,
    VersionServed,
)
from headrace.transport import Actor, Context, MailboxBound, PeerDown, PeerUp, TransportError, handles

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 60.0
_SWEEP_EVERY_S = 5.0
_SLOT_GRACE_S = 60.0
_SHORTEST_WAIT_S = 0.001
_GROUPS_BEFORE_SEED_WARNING = 16


class Dispatcher(Actor):
    """`tasks`: where tasks come from. `batch_sessions`: sessions of one optimizer step, a multiple of `group_size`.
    `temperature`, `max_tokens` (per turn): how training sessions are sampled. `evaluation` None: none is made.
    `session_timeout_s`: an attempt without a grade is given up after that long (environments have their own, shorter
    deadlines). `stall_log_s`: a learner that waits longer is told about in the log, with the ids of what is pending.
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
        pass_reward: float = 1.0,
        temperature: float = 1.0,
        max_tokens: int = 64,
        seed: int = 0,
        evaluation: EvaluationSettings | None = None,
        ledger_path: str | None = None,
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
            pass_reward=pass_reward,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
        )
        check_at_least("metrics_every_s", metrics_every_s, 0.01)
        check_at_least("session_timeout_s", session_timeout_s, 0.01)
        check_at_least("stall_log_s", stall_log_s, 0.01)
        self._tasks = tasks
        self._ledger_path = ledger_path
        self._session_timeout_s = session_timeout_s
        self._metrics_every_s = metrics_every_s
        self._hunger = LongWait(stall_log_s)
        self._journal = LedgerJournal(None)
        self.training = TrainingSessions(settings, tasks, lambda record: self._journal.write(record))
        self.placement = Placement()
        self.evaluator = Evaluator(evaluation, seed=seed, max_tokens=max_tokens)
        self._incarnations: dict[str, str] = {}
        self._dead_graders: set[str] = set()
        self.seating = Seating(self.training, self.evaluator, self.placement, self._fail)
        self._group_ready = asyncio.Event()
        self._started_s = 0.0
        self._warned_identical = False
        self._num_quarantined = 0

    async def on_start(self, context: Context) -> None:
        self._started_s = context.clock.time()
        self._journal = LedgerJournal(self._ledger_path)
        await self.evaluator.begin(
            context, self._tasks, wake=self.seating.wake, stop_sessions=self.seating.stop_sessions
        )
        context.watch("environment")
        context.watch("grader")
        context.spawn(self.seating.pump(context), "place sessions")
        context.spawn(self._keep_time(), "metrics and deadlines")
        context.spawn(self._evaluate_and_end(), "evaluate")

    async def on_stop(self) -> None:
        self.training.finish()
        self._journal.close()

    # --- environments and graders -----------------------------------------------------------------------------------

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        if message.name.startswith("grader/"):
            self._dead_graders.discard(message.name)
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
        self.seating.wake()

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        detail = f"{message.name} is gone: {message.reason}"
        if message.name.startswith("grader/"):
            self._dead_graders.add(message.name)
            held = [record.spec.session_id for record in self.training.held_by(message.name)]
            self._lose(held + self.evaluator.held_by(message.name), detail)
        elif self._incarnations.get(message.name) == message.incarnation:
            del self._incarnations[message.name]
            self._lose(self.placement.leave(message.name), detail)
        self.seating.wake()

    @handles(SessionsMoved)
    async def sessions_moved(self, message: SessionsMoved) -> None:
        for session_id in message.session_ids:
            self.placement.release(session_id)
            self.seating.owner(session_id).moved(session_id, message.grader)
        if message.grader in self._dead_graders:
            self._lose(list(message.session_ids), f"{message.grader} is gone")
        self.seating.wake()

    @handles(SessionFailed)
    async def session_failed(self, message: SessionFailed) -> Accepted:
        self.placement.release(message.session_id)
        self._fail(message.session_id, message.attempt, message.reason, message.detail)
        self.seating.wake()
        return Accepted()

    @handles(SessionGraded)
    async def session_graded(self, message: SessionGraded) -> Accepted:
        if self.evaluator.owns(message.trajectory.spec.session_id):
            self.evaluator.graded(message.trajectory)
        else:
            self.training.graded(message.trajectory)
            self._group_ready.set()
        self.seating.wake()
        return Accepted()

    def _lose(self, session_ids: list[str], detail: str) -> None:
        """Sessions whose holder is gone: tried again elsewhere. A graded one is safe here."""
        for session_id in session_ids:
            attempt = self.seating.owner(session_id).attempt_of(session_id)
            if attempt is not None:
                self._fail(session_id, attempt, "lost", detail)

    def _fail(self, session_id: str, attempt: int, reason: str, detail: str) -> None:
        logger.info("session %s, attempt %d: %s: %s", session_id, attempt + 1, reason, detail)
        self.seating.owner(session_id).failed(session_id, attempt, reason, detail)
        self._group_ready.set()  # the rest of its group may be ready without it
        for task_id, why in list(self.training.issuer.quarantined.items())[self._num_quarantined :]:
            self._num_quarantined += 1
            logger.warning("task %s is quarantined and not issued again: %s", task_id, why)

    # --- the learner and the parameter server -----------------------------------------------------------------------

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> None:
        first = not self.training.versions.any_served
        self.training.served(message.version, message.step)
        if first:  # rollouts begin: rates are measured from here
            self.context.tell_soon("monitor", self._metrics())
        self.evaluator.served(message.step)
        self.seating.wake()

    @handles(NextBatch, concurrent=True)
    async def next_batch(self, message: NextBatch) -> Batch:
        """Waits for ready groups; whoever completes one wakes it. An empty Batch after `wait_s`, or when the run
        ends."""
        clock = self.context.clock
        until_s = clock.time() + message.wait_s
        self._hunger.begin(clock.time())
        while True:
            self._group_ready.clear()
            batch = self.training.take_batch(message.step)
            self.seating.wake()  # what was too old made room
            if batch is not None:
                self._hunger.end()
                return Batch(batch.groups, batch.version_steps)
            now_s = clock.time()
            if self.training.finished or now_s >= until_s:
                return Batch(())
            waited_s = self._hunger.alarm(now_s)
            if waited_s is not None:
                logger.warning(describe_wait(self.training, self.placement, waited_s=waited_s, now_s=now_s))
            try:
                async with asyncio.timeout(max(_SHORTEST_WAIT_S, min(self._hunger.alarm_at_s, until_s) - now_s)):
                    await self._group_ready.wait()
            except TimeoutError:
                continue

    @handles(BatchTrained)
    async def batch_trained(self, message: BatchTrained) -> Accepted:
        self.training.trained(message.step, message.session_ids)
        self.seating.wake()
        return Accepted()

    @handles(TrainingFinished)
    async def training_finished(self, message: TrainingFinished) -> Accepted:
        self.training.finish()
        self._journal.flush()
        self._group_ready.set()
        self.seating.wake()
        self.evaluator.finish(message.version)
        return Accepted()

    # --- background -------------------------------------------------------------------------------------------------

    async def _evaluate_and_end(self) -> None:
        """Evaluates whenever it is due; after the final one the run is over."""
        await self.evaluator.run_until_finished()
        self._journal.flush()
        try:
            await self.context.tell("monitor", self._metrics())
        except TransportError as error:
            logger.warning("the monitor did not get the last figures of the ledger: %s", error)
        await self.context.ask("supervisor", RunFinished("training and evaluation are done"), timeout_s=_ASK_TIMEOUT_S)

    async def _keep_time(self) -> None:
        next_sweep_s = 0.0
        while True:
            await self.context.clock.sleep(self._metrics_every_s)
            self.context.tell_soon("monitor", self._metrics())
            self._warn_of_identical_groups()
            if self.context.clock.time() >= next_sweep_s:
                next_sweep_s = self.context.clock.time() + _SWEEP_EVERY_S
                await self._sweep()

    def _metrics(self) -> Metrics:
        wall_s = self.context.clock.time() - self._started_s
        return Metrics("dispatcher", "wall_s", wall_s, gauges(self.training, self.placement))

    async def _sweep(self) -> None:
        """Give up attempts past their deadline, free slots that nobody needs, and put the journal on disk."""
        now_s = self.context.clock.time()
        for record in self.training.overdue(now_s, self._session_timeout_s):
            spec, holder = record.spec, record.holder
            await self.seating.stop_sessions([spec.session_id])
            self._fail(
                spec.session_id,
                spec.attempt,
                "timed_out",
                f"no grade after {self._session_timeout_s:g} s, last at {holder}",
            )
        expired = self.placement.expire(self._needs_slot, now_s=now_s, grace_s=_SLOT_GRACE_S)
        if expired:
            logger.warning("%d slots freed: their sessions ended long ago (e.g. %s)", len(expired), expired[0])
        self._journal.flush()
        self.seating.wake()

    def _needs_slot(self, session_id: str) -> bool:
        if self.evaluator.owns(session_id):
            return True
        record = self.training.ledger.get(session_id)
        return record is not None and record.state is SessionState.RUNNING

    def _warn_of_identical_groups(self) -> None:
        counters = self.training.counters
        complete, same = counters["groups_complete"], counters["groups_identical"]
        if not self._warned_identical and complete >= _GROUPS_BEFORE_SEED_WARNING and 2 * same > complete:
            self._warned_identical = True
            logger.warning(
                "in %d of %d groups all sessions sampled the same tokens: "
                "do engines honour the seeds, or has the policy collapsed?",
                same,
                complete,
            )
