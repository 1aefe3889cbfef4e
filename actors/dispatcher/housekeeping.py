"""What the dispatcher does by the clock: figures for the monitor, deadlines of attempts, slots that nobody needs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.actors.dispatcher.evaluator import Evaluator
from headrace.actors.dispatcher.gauges import gauges
from headrace.actors.dispatcher.ledger import SessionState
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.seating import Fail, Seating
from headrace.actors.dispatcher.settings import check_at_least
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.messages import Metrics
from headrace.transport import Context

logger = logging.getLogger(__name__)

_SWEEP_EVERY_S = 5.0
_SLOT_GRACE_S = 60.0
_GROUPS_BEFORE_SEED_WARNING = 16


class Housekeeping:
    """`fail` gives an attempt up; `changed` says that sessions may be placed, or the journal written."""

    def __init__(
        self,
        training: TrainingSessions,
        evaluator: Evaluator,
        placement: Placement,
        seating: Seating,
        *,
        fail: Fail,
        changed: Callable[[], None],
        metrics_every_s: float,
        session_timeout_s: float,
    ) -> None:
        check_at_least("metrics_every_s", metrics_every_s, 0.01)
        check_at_least("session_timeout_s", session_timeout_s, 0.01)
        self._training = training
        self._evaluator = evaluator
        self._placement = placement
        self._seating = seating
        self._fail = fail
        self._changed = changed
        self._metrics_every_s = metrics_every_s
        self._session_timeout_s = session_timeout_s
        self._started_s = 0.0
        self._warned_identical = False
        self._num_quarantined = 0

    def begin(self, context: Context) -> None:
        self._context = context
        self._started_s = context.clock.time()

    async def run(self) -> None:
        """For the actor's life."""
        next_sweep_s = 0.0
        while True:
            await self._context.clock.sleep(self._metrics_every_s)
            self.report()
            self._warn_of_identical_groups()
            if self._context.clock.time() >= next_sweep_s:
                next_sweep_s = self._context.clock.time() + _SWEEP_EVERY_S
                self._sweep()

    def metrics(self) -> Metrics:
        wall_s = self._context.clock.time() - self._started_s
        values = gauges(self._training, self._placement) | self._evaluator.gauges()
        return Metrics("dispatcher", "wall_s", wall_s, values)

    def report(self) -> None:
        self._context.tell_soon("monitor", self.metrics())

    def tell_quarantined(self) -> None:
        """Name in the log what was set aside since the last call."""
        for task_id, why in list(self._training.issuer.quarantined.items())[self._num_quarantined :]:
            self._num_quarantined += 1
            logger.warning("task %s is quarantined and not issued again: %s", task_id, why)

    def _sweep(self) -> None:
        """Give up attempts past their deadline, and free slots that nobody needs."""
        now_s = self._context.clock.time()
        for record in self._training.overdue(now_s, self._session_timeout_s):
            spec, holder = record.spec, record.holder
            self._seating.stop_sessions([(spec.session_id, spec.attempt)])
            self._fail(
                spec.session_id,
                spec.attempt,
                "timed_out",
                f"no grade after {self._session_timeout_s:g} s, last at {holder}",
            )
        expired = self._placement.expire(self._needs_slot, now_s=now_s, grace_s=_SLOT_GRACE_S)
        if expired:
            logger.warning("%d slots freed: their sessions ended long ago (e.g. %s)", len(expired), expired[0])
        self._changed()

    def _needs_slot(self, session_id: str) -> bool:
        if self._evaluator.owns(session_id):
            return True
        record = self._training.ledger.get(session_id)
        return record is not None and record.state is SessionState.RUNNING

    def _warn_of_identical_groups(self) -> None:
        counters = self._training.counters
        complete, same = counters["groups_complete"], counters["groups_identical"]
        if not self._warned_identical and complete >= _GROUPS_BEFORE_SEED_WARNING and 2 * same > complete:
            self._warned_identical = True
            logger.warning(
                "in %d of %d groups all sessions sampled the same tokens: "
                "do engines honour the seeds, or has the policy collapsed?",
                same,
                complete,
            )
