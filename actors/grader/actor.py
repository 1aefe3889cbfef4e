"""The grader actor: takes finished sessions, grades them, records them, and hands them to the dispatcher.

    environment ──GradeSession──▶ queue (bounded) ──▶ `concurrency` tasks: grade → shard → SessionGraded ──▶ dispatcher

It owns a session from its `Accepted` until the dispatcher's, also while the dispatcher is restarted. The queue holds
`concurrency` sessions; when it is full the environments' asks wait, in the mailbox's places; a finished delivery
unblocks them. Cheap gradings run here; what may hang runs in killable processes (worker_pool.py). A grading that fails
gives "no reward", never 0, and is told in the log (failures.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import Counter, OrderedDict
from pathlib import Path

from headrace.actors.grader.composite import quick_grade
from headrace.actors.grader.failures import FailureLog
from headrace.actors.grader.grading import Grade, Grading, WarmGrading
from headrace.actors.grader.trajectory_shard import TrajectoryShard, shard_path, to_line
from headrace.actors.grader.worker_pool import DEFAULT_MEMORY_BYTES, PoolClosed, WorkerFailed, WorkerPool
from headrace.actors.messages import (
    Accepted,
    GradeSession,
    Metrics,
    SessionFailed,
    SessionGraded,
    SessionsHeld,
    WhichSessions,
)
from headrace.actors.session import Trajectory
from headrace.transport import (
    Actor,
    Context,
    DeadlineExceeded,
    PeerLost,
    Refused,
    RuntimeStopped,
    TransportError,
    handles,
)

log = logging.getLogger(__name__)

_REMEMBERED_SESSIONS = 4096
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 5.0
_DRAIN_LIMIT_S = 2.0


class Grader(Actor):
    """grading: the plug-in (grading.py). concurrency: sessions in hand at once, each being graded or delivered.
    workers: child processes for gradings of isolation "process"; started when first needed. timeout_s: hard limit of
    one grading there. memory_bytes: address space of such a child. trajectories_dir: where the shard is written.
    dispatcher, monitor: names of those actors. delivery_timeout_s: of one try to hand a session over; tries go on, with
    whichever process the dispatcher is by then, for delivery_patience_s. metrics_every_s: how often it reports.
    """

    def __init__(
        self,
        *,
        grading: Grading,
        trajectories_dir: str,
        concurrency: int = 64,
        workers: int = 1,
        timeout_s: float = 10.0,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        dispatcher: str = "dispatcher",
        monitor: str = "monitor",
        delivery_timeout_s: float = 30.0,
        delivery_patience_s: float = 300.0,
        metrics_every_s: float = 5.0,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("workers", workers)):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        for name, seconds in (
            ("timeout_s", timeout_s),
            ("delivery_timeout_s", delivery_timeout_s),
            ("delivery_patience_s", delivery_patience_s),
            ("metrics_every_s", metrics_every_s),
        ):
            if seconds <= 0:
                raise ValueError(f"{name} must be > 0, got {seconds}")
        if not callable(getattr(grading, "grade", None)) or getattr(grading, "isolation", None) not in (
            "inline",
            "process",
        ):
            raise ValueError(
                f"grading must have a method grade(trajectory) and isolation 'inline' or 'process', got {grading!r}; "
                "see headrace/actors/grader/grading.py"
            )
        self._grading = grading
        self._trajectories_dir = Path(trajectories_dir)
        self._concurrency = concurrency
        self._workers = workers
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._dispatcher = dispatcher
        self._monitor = monitor
        self._delivery_timeout_s = delivery_timeout_s
        self._delivery_patience_s = delivery_patience_s
        self._metrics_every_s = metrics_every_s
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.counts: Counter[str] = Counter()
        """graded, missing, killed, raised, delivered, undelivered, abandoned, duplicates"""
        self._failures = FailureLog()

    async def on_start(self, context: Context) -> None:
        self._queue: asyncio.Queue[Trajectory] = asyncio.Queue(maxsize=self._concurrency)
        self._in_hand: set[tuple[str, int]] = set()
        self._stopping = False
        self._shard = TrajectoryShard(shard_path(self._trajectories_dir, context.name))
        self._pool: WorkerPool | None = None
        if self._grading.isolation == "process":
            self._pool = WorkerPool(
                self._grading,
                num_workers=self._workers,
                timeout_s=self._timeout_s,
                memory_bytes=self._memory_bytes,
            )
        if isinstance(self._grading, WarmGrading):
            await context.run_blocking(self._grading.warm_up, False, label="warm_up")
        for number in range(self._concurrency):
            context.spawn(self._work(), name=f"{context.name}-work-{number}")
        context.spawn(self._keep_reporting(), name=f"{context.name}-report")

    def has_work(self) -> bool:
        """Sessions that the dispatcher has not accepted yet."""
        return bool(self._in_hand)

    async def on_stop(self) -> None:
        """Deliver what is in hand, within a bound; then end the child processes and close the shard."""
        deadline = self.context.clock.time() + _DRAIN_LIMIT_S
        while self._in_hand and self.context.clock.time() < deadline:
            await self.context.clock.sleep(0.02)
        if self._in_hand:
            log.warning("stopping with %d sessions in hand; nobody waits for their rewards", len(self._in_hand))
        self._stopping = True
        if self._pool is not None:
            await self._pool.close()
        self._failures.tick(self.context.clock.time(), last=True)
        self._shard.close()

    @handles(GradeSession, concurrent=True)
    async def grade_session(self, message: GradeSession) -> Accepted:
        """Accepted once it has a place in the queue. A repeated ask for the same attempt is accepted and ignored.
        Concurrent, so that a full queue does not keep WhichSessions waiting."""
        spec = message.trajectory.spec
        key = (spec.session_id, spec.attempt)
        if key in self._seen:
            self.counts["duplicates"] += 1
            return Accepted(self.context.incarnation)
        self._seen[key] = None
        try:
            await self._queue.put(message.trajectory)
        except asyncio.CancelledError:  # the environment gave up: it is still its own
            self._seen.pop(key, None)
            raise
        self._in_hand.add(key)
        if len(self._seen) > _REMEMBERED_SESSIONS:
            self._seen.popitem(last=False)
        return Accepted(self.context.incarnation)

    @handles(WhichSessions)
    async def which_sessions(self, message: WhichSessions) -> SessionsHeld:
        return SessionsHeld(tuple(sorted(self._in_hand)), self.context.incarnation)

    async def _work(self) -> None:
        while True:
            trajectory = await self._queue.get()
            try:
                await self._finish(trajectory)
            finally:
                self._in_hand.discard((trajectory.spec.session_id, trajectory.spec.attempt))

    async def _finish(self, trajectory: Trajectory) -> None:
        clock = self.context.clock
        began_s = clock.time()
        grade = await self._grade(trajectory)
        if self._stopping:  # past the drain: the shard is closed or about to be, and nobody waits for it
            self.counts["abandoned"] += 1
            return
        graded = trajectory.graded(grade.reward, grade.components, grade.notes, grade=clock.time() - began_s)
        self.counts["graded"] += 1
        self.counts["missing"] += grade.reward is None
        self.counts["killed"] += grade.notes.get("grading") in ("timed_out", "died")
        self.counts["raised"] += grade.notes.get("grading") == "raised"
        self._failures.take(trajectory.spec.session_id, grade, now_s=clock.time())
        self._shard.append(to_line(graded, actor_name=self.context.name, graded_at_s=time.time()))
        await self._deliver(graded)

    async def _grade(self, trajectory: Trajectory) -> Grade:
        """The grade, or None with the reason in the notes."""
        try:
            with self.context.activity.working("grade"):
                grade = quick_grade(self._grading, trajectory)
                if grade is None:
                    assert self._pool is not None, "isolation 'process' has a pool"
                    grade = await self._pool.grade(trajectory)
            return grade
        except PoolClosed as error:
            return Grade(None, notes={"grading": "abandoned", "grading_detail": str(error)})
        except WorkerFailed as error:
            return Grade(None, notes={"grading": "worker_failed", "grading_detail": str(error)})
        except Exception:  # an author's bug must not take the actor down: no reward, with the traceback in the record
            return Grade(None, notes={"grading": "raised", "grading_detail": traceback.format_exc()[-4000:]})

    async def _deliver(self, graded: Trajectory) -> None:
        """Until the dispatcher, or its successor, accepts it."""
        clock = self.context.clock
        pause_s, give_up_s = _FIRST_RETRY_S, clock.time() + self._delivery_patience_s
        while True:
            try:
                await self.context.ask(self._dispatcher, SessionGraded(graded), timeout_s=self._delivery_timeout_s)
                self.counts["delivered"] += 1
                return
            except (DeadlineExceeded, PeerLost, Refused) as error:
                if clock.time() >= give_up_s:
                    self._undelivered(graded, error)  # the dispatcher's own deadline has it tried again
                    return
                log.warning("handing over session %s: %s; trying again", graded.spec.session_id, error)
                await clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_RETRY_S)
            except RuntimeStopped as error:
                self._undelivered(graded, error)
                return
            except TransportError as error:  # it can never be accepted: the dispatcher raised, or it is no message
                self._undelivered(graded, error)
                await self._give_up(graded, str(error))
                return

    async def _give_up(self, graded: Trajectory, detail: str) -> None:
        spec = graded.spec
        failed = SessionFailed(spec.session_id, spec.attempt, "failed", f"graded, but not accepted: {detail}"[:4000])
        try:
            await self.context.ask(self._dispatcher, failed, timeout_s=self._delivery_timeout_s)
        except TransportError as error:
            log.error("session %s is lost: %s", spec.session_id, error)

    def _undelivered(self, graded: Trajectory, error: TransportError) -> None:
        self.counts["undelivered"] += 1
        log.log(
            logging.ERROR if self.counts["undelivered"] == 1 else logging.DEBUG,
            "session %s was graded but not handed over: %s; further ones are counted (metric grader/undelivered)",
            graded.spec.session_id,
            error,
        )

    async def _keep_reporting(self) -> None:
        clock = self.context.clock
        began_s = clock.time()
        while True:
            await clock.sleep(self._metrics_every_s)
            self._failures.tick(clock.time())
            values = {name: float(count) for name, count in self.counts.items()}
            self.context.tell_soon(self._monitor, Metrics("grader", "wall_s", clock.time() - began_s, values))
