"""Puts sessions into the slots of environments and takes them out again: the I/O around `placement.py`.

One task (`pump`) consumes free slots and produces RunSessions; `wake` says that something may have changed. While
both have sessions to run, an evaluation has half of the slots and training the other: neither waits for the other's
end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.actors.dispatcher.evaluator import Evaluator
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.messages import CancelSessions, RunSessions
from headrace.actors.session import SessionSpec
from headrace.transport import Context, PeerLost, Refused, TransportError, insist

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 60.0
_CANCEL_TIMEOUT_S = 10.0
_CANCEL_PATIENCE_S = 60.0
_PAUSE_S = 0.5

Fail = Callable[[str, int, str, str], None]
"""(session id, attempt, reason, detail)"""


class Seating:
    """`fail` is called where an environment does not take what it was given; `durable` is awaited before it is given
    anything: no session runs that a restarted dispatcher would not know of."""

    def __init__(
        self,
        training: TrainingSessions,
        evaluator: Evaluator,
        placement: Placement,
        fail: Fail,
        durable: Callable[[], Awaitable[None]],
    ) -> None:
        self._training = training
        self._evaluator = evaluator
        self._placement = placement
        self._fail = fail
        self._durable = durable
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Slots, room or sessions may have changed."""
        self._changed.set()

    def owner(self, session_id: str) -> TrainingSessions | Evaluator:
        """The state machine that a session belongs to."""
        return self._evaluator if self._evaluator.owns(session_id) else self._training

    def begin(self, context: Context) -> None:
        self._context = context

    async def pump(self) -> None:
        """Runs for the actor's life."""
        context = self._context
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.stop_sessions(self._training.take_stopped())
            for environment, specs in self._place().items():
                context.spawn(self._run_sessions(environment, tuple(specs)), f"run on {environment}")

    def left(self, session_id: str, attempt: int) -> None:
        """That attempt has left its slot. Ignored where the slot is a later one's: the news may be said twice."""
        if self.owner(session_id).attempt_of(session_id) in (None, attempt):
            self._placement.release(session_id)

    def stop_sessions(self, sessions: list[tuple[str, int]]) -> None:
        """Cancel what still sits in an environment, given as (session id, attempt); the slots are free at once."""
        by_environment: dict[str, list[tuple[str, int]]] = {}
        for session_id, attempt in sessions:
            environment = self._placement.release(session_id)
            if environment is not None:
                by_environment.setdefault(environment, []).append((session_id, attempt))
        for environment, stopped in by_environment.items():
            self.cancel(environment, stopped)

    def cancel(self, environment: str, sessions: list[tuple[str, int]]) -> None:
        """In a task of its own: an environment that does not answer holds nobody else up."""
        self._context.spawn(self._cancel(environment, tuple(sessions)), f"cancel on {environment}")

    async def _cancel(self, environment: str, sessions: tuple[tuple[str, int], ...]) -> None:
        message = CancelSessions(sessions)
        try:
            await insist(
                self._context, environment, message, timeout_s=_CANCEL_TIMEOUT_S, patience_s=_CANCEL_PATIENCE_S
            )
        except TransportError as error:
            logger.info("%d sessions were not cancelled at %s: %s", len(sessions), environment, error)

    def _place(self) -> dict[str, list[SessionSpec]]:
        placed: dict[str, list[SessionSpec]] = {}
        now_s = self._context.clock.time()
        for _ in range(self._placement.num_free):
            spec = self._next_session(now_s)
            environment = None if spec is None else self._placement.place(spec.session_id)
            if spec is None or environment is None:
                break
            self.owner(spec.session_id).started(spec.session_id, environment, now_s)
            placed.setdefault(environment, []).append(spec)
        return placed

    def _next_session(self, now_s: float) -> SessionSpec | None:
        if 2 * self._evaluator.num_seated < self._placement.num_slots:
            return self._evaluator.next_session() or self._training.next_session(now_s)
        return self._training.next_session(now_s) or self._evaluator.next_session()

    async def _run_sessions(self, environment: str, specs: tuple[SessionSpec, ...]) -> None:
        await self._durable()
        try:
            # an environment that died meanwhile has lost its seats: its successor, of the same name, must not get them
            while specs := tuple(spec for spec in specs if self._sits(spec, environment)):
                try:
                    await self._context.ask(environment, RunSessions(specs), timeout_s=_ASK_TIMEOUT_S)
                    return
                except PeerLost:  # where it is dead, PeerDown empties its seats; where its connection broke, they stay
                    await self._context.clock.sleep(_PAUSE_S)
        except Refused:
            logger.warning("%s refused %d sessions; they wait", environment, len(specs))
            await self._context.clock.sleep(_PAUSE_S)
            for spec in (spec for spec in specs if self._sits(spec, environment)):  # it may have left meanwhile
                self._placement.release(spec.session_id)
                self.owner(spec.session_id).not_started(spec.session_id)
            self.wake()
        except TransportError as error:
            logger.error("%s did not take %d sessions: %s", environment, len(specs), error)
            self.stop_sessions([(spec.session_id, spec.attempt) for spec in specs])
            for spec in specs:
                self._fail(spec.session_id, spec.attempt, "lost", f"RunSessions: {error}")
            self.wake()

    def _sits(self, spec: SessionSpec, environment: str) -> bool:
        in_seat = self._placement.seat(spec.session_id) == environment
        return in_seat and self.owner(spec.session_id).attempt_of(spec.session_id) == spec.attempt
