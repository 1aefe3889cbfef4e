"""The environment actor: slots in which sessions run, and the way of their trajectories to a grader.

Consumes RunSessions, CancelSessions and WhichSessions from the dispatcher; asks generators Generate and graders
GradeSession, and the dispatcher SessionsMoved or SessionFailed until it has heard. At most `slots` sessions run at
once; the dispatcher sees `slots` in the directory and never sends more, and a session that comes early (a cancelled one
still closes) waits for its slot.
It grades nothing and keeps no session once a grader has acknowledged it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.actors.environment.counters import SessionCounters
from headrace.actors.environment.environment import EnvironmentFactory, check_environment
from headrace.actors.environment.handover import RETRY_PAUSE_S, GraderPool, GraderProcess, Moves, report_failure
from headrace.actors.environment.model_config import context_tokens_of
from headrace.actors.environment.phases import CANCEL_GRACE_S, SessionError, Timeouts
from headrace.actors.environment.session import Session, SessionRules
from headrace.actors.environment.tool_calls import ToolCallParser, make_parser
from headrace.actors.messages import (
    Accepted,
    CancelSessions,
    Completion,
    Generate,
    Metrics,
    RunSessions,
    SessionFailed,
    SessionsHeld,
    WhichSessions,
)
from headrace.actors.rendering import RendererFactory, check_renderer, load_renderer
from headrace.actors.session import SessionSpec
from headrace.transport import Actor, Context, DeadlineExceeded, PeerLost, Refused, TransportError, handles

MOVES_TICK_S = 0.005
"""SessionsMoved gathers for this long: one message for many sessions, and a slot is free hardly later."""

QUEUED_PER_SLOT = 2
"""Sessions known to the actor (waiting, running, closing) for each slot; more are refused."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    attempt: int
    task: asyncio.Task[None]


class EnvironmentActor(Actor):
    """Constructor arguments (the config of the role):

    environment:     a class with `_partial_: true`; called without arguments once a session
    model_path:      the prepared model folder (tokenizer.json, config.json, chat template)
    slots:           sessions at once
    max_turns:       generations a session; a session that needs more ends as truncated
    context_tokens:  prompt + max_tokens of a turn never exceed it; None: the model's max_position_embeddings
    renderer:        auto | chat | plain, or a `_partial_` of a renderer class that is called with the ModelTokenizer
    tool_calls:      none | hermes_json | xml | python, or a parser object
    seed:            base of the sampling seeds where a session brings none; None: unseeded
    *_timeout_s:     deadlines of the phases; session_timeout_s bounds them all together
    """

    def __init__(
        self,
        *,
        environment: EnvironmentFactory,
        model_path: str,
        slots: int = 64,
        max_turns: int = 1,
        context_tokens: int | None = None,
        renderer: str | RendererFactory = "auto",
        tool_calls: str | ToolCallParser = "none",
        seed: int | None = 0,
        reset_timeout_s: float = 60.0,
        generate_timeout_s: float = 600.0,
        step_timeout_s: float = 120.0,
        close_timeout_s: float = 10.0,
        session_timeout_s: float = 3600.0,
        grade_timeout_s: float = 60.0,
        report_timeout_s: float = 30.0,
        max_generation_tries: int = 3,
        metrics_every_s: float = 2.0,
        dispatcher: str = "dispatcher",
        grader: str = "grader",
        monitor: str = "monitor",
    ) -> None:
        if not callable(environment):
            raise ValueError(
                f"environment must be callable without arguments, got {type(environment).__name__}; "
                "in YAML add `_partial_: true` beside its `_target_`"
            )
        check_environment(environment)
        _at_least_one(slots=slots, max_turns=max_turns, max_generation_tries=max_generation_tries)
        _positive(grade_timeout_s=grade_timeout_s, report_timeout_s=report_timeout_s, metrics_every_s=metrics_every_s)
        if context_tokens is not None:
            _at_least_one(context_tokens=context_tokens)
        check_renderer(renderer)
        self._environment = environment
        self._model_path = model_path
        self._slots = slots
        self._max_turns = max_turns
        self._context_tokens = context_tokens
        self._renderer = renderer
        self._parser = make_parser(tool_calls)
        self._seed = seed
        self._timeouts = Timeouts(
            reset_timeout_s, generate_timeout_s, step_timeout_s, close_timeout_s, session_timeout_s
        )
        self._grade_timeout_s = grade_timeout_s
        self._report_timeout_s = report_timeout_s
        self._max_generation_tries = max_generation_tries
        self._metrics_every_s = metrics_every_s
        self._dispatcher, self._grader, self._monitor = dispatcher, grader, monitor
        self._counters = SessionCounters()
        self._moves = Moves()
        self._telling = False
        self._running: dict[str, Running] = {}

    def metadata(self) -> dict[str, object]:
        return {"slots": self._slots}

    async def on_start(self, context: Context) -> None:
        self._rules = SessionRules(
            renderer=load_renderer(self._renderer, self._model_path),
            parser=self._parser,
            timeouts=self._timeouts,
            context_tokens=self._context_tokens or context_tokens_of(Path(self._model_path)),
            max_turns=self._max_turns,
            base_seed=self._seed,
            max_generation_tries=self._max_generation_tries,
        )
        self._graders = GraderPool(context, self._grader, self._grade_timeout_s)
        self._free_slots = asyncio.Semaphore(self._slots)
        self._moved = asyncio.Event()
        context.spawn(self._tell_moves(), "tell moves")
        context.spawn(self._tell_metrics(), "tell metrics")

    def has_work(self) -> bool:
        """Sessions in hand, or word of them that the dispatcher has not had."""
        return bool(self._running or self._moves or self._telling)

    async def on_stop(self) -> None:
        """Sessions are cancelled and their environments closed, within close_timeout_s and a little grace."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._timeouts.close_s + 2 * CANCEL_GRACE_S)

    @handles(RunSessions)
    async def run_sessions(self, message: RunSessions) -> Accepted:
        """Raises Refused, and takes none, where they are more than the actor can know at once, or it is leaving. An
        attempt that is known already (an ask repeated after its reply was lost) is not run twice; a newer attempt takes
        the older one's place."""
        if self.context.leaving:
            raise Refused(f"{self.context.name} is leaving and takes no more sessions")
        new = [spec for spec in message.sessions if not self._knows(spec)]
        limit = QUEUED_PER_SLOT * self._slots
        if len(self._running) + len(new) > limit:
            raise Refused(
                f"{self.context.name} has {self._slots} slots and {len(self._running)} sessions, got {len(new)} more"
            )
        for spec in new:
            self._cancel(spec.session_id)
            task = self.context.spawn(self._run(spec), f"session {spec.session_id}")
            self._running[spec.session_id] = Running(spec.attempt, task)
        return Accepted()

    @handles(CancelSessions)
    async def cancel_sessions(self, message: CancelSessions) -> Accepted:
        """A later attempt goes on: the message may be a repeated one."""
        for session_id, attempt in message.sessions:
            running = self._running.get(session_id)
            if running is not None and running.attempt <= attempt:
                self._cancel(session_id)
        return Accepted()

    @handles(WhichSessions)
    async def which_sessions(self, message: WhichSessions) -> SessionsHeld:
        """What no grader has acknowledged, and whose failure the dispatcher has not."""
        held = tuple((session_id, running.attempt) for session_id, running in self._running.items())
        return SessionsHeld(held, self.context.incarnation, self._slots)

    def _knows(self, spec: SessionSpec) -> bool:
        running = self._running.get(spec.session_id)
        return running is not None and running.attempt >= spec.attempt

    def _cancel(self, session_id: str) -> None:
        """From here on nothing is sent about it; its slot is free when its environment is closed."""
        running = self._running.pop(session_id, None)
        if running is not None:
            running.task.cancel()
            self._counters.cancelled += 1

    async def _run(self, spec: SessionSpec) -> None:
        """One session from its slot to its grader; never raises (cancellation apart)."""
        try:
            async with self._free_slots:
                grader = await self._run_in_slot(spec)
        except SessionError as error:
            await self._report(spec, error)
        else:
            self._moves.add(spec.session_id, spec.attempt, grader)
            self._moved.set()
        finally:
            running = self._running.get(spec.session_id)
            if running is not None and running.attempt == spec.attempt:
                del self._running[spec.session_id]

    async def _run_in_slot(self, spec: SessionSpec) -> GraderProcess:
        """The grader that owns the session now. The slot is held until then: what is not acknowledged is still ours."""
        generators = self.context.group(spec.generators)

        async def ask(request: Generate, timeout_s: float) -> Completion:
            completion: Completion = await generators.ask(request, key=spec.session_id, timeout_s=timeout_s)
            return completion

        session = Session(
            spec, self._environment, self._rules, ask, self.context.clock, self._counters, self._accounted
        )
        try:
            trajectory = await session.run()
        except SessionError:
            raise
        except Exception as error:  # a renderer's, a template's or a parser's: the session fails, the actor goes on
            detail = f"in phase {session.phase}:\n{''.join(traceback.format_exception(error))[-2000:]}"
            raise SessionError("failed", detail, "plug_in_error") from error
        grader = await self._graders.hand_over(trajectory)
        self._counters.finished()
        return grader

    async def _accounted(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Author's code runs in tasks of its own (see phases.py), which the runtime does not time by itself."""
        return await self.context.activity.drive(coroutine, getattr(coroutine, "__qualname__", "environment"))

    async def _report(self, spec: SessionSpec, error: SessionError) -> None:
        self._counters.failed(error.counter)
        log.warning("session %s (attempt %d) %s: %s", spec.session_id, spec.attempt, error.reason, error.detail)
        failure = SessionFailed(spec.session_id, spec.attempt, error.reason, error.detail)
        if not await report_failure(self.context, self._dispatcher, failure, self._report_timeout_s):
            self._counters.unreported += 1
            log.error("session %s failed and %s could not be told", spec.session_id, self._dispatcher)

    async def _tell_moves(self) -> None:
        while True:
            await self._moved.wait()
            await self.context.clock.sleep(MOVES_TICK_S)
            self._moved.clear()
            self._telling = True
            for move in self._moves.take():
                try:
                    await self.context.ask(self._dispatcher, move, timeout_s=self._report_timeout_s)
                except (PeerLost, Refused, DeadlineExceeded) as error:
                    log.warning("%s has not heard of %d moves: %s", self._dispatcher, len(move.sessions), error)
                    self._moves.put_back(move)
                    self._moved.set()
                    await self.context.clock.sleep(RETRY_PAUSE_S)
                except TransportError as error:  # it would be the same again; the dispatcher frees the slots in time
                    log.error("%s did not take the word of %d moves: %s", self._dispatcher, len(move.sessions), error)
            self._telling = False

    async def _tell_metrics(self) -> None:
        clock = self.context.clock
        started = clock.time()
        while True:
            await clock.sleep(self._metrics_every_s)
            values = self._counters.values(running=len(self._running))
            self.context.tell_soon(self._monitor, Metrics("environment", "wall_s", clock.time() - started, values))


def _at_least_one(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be > 0, got {value}")
