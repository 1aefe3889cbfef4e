"""Runs evaluations one after the other for the dispatcher: holds a version, waits for its sessions, publishes the
figures.

The state machines are `evaluation.py`'s; this holds what waits. Without settings it only waits for the end of training.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.actors.dispatcher.evaluation import Evaluation, EvaluationSchedule, EvaluationSettings
from headrace.actors.dispatcher.ledger import DropReason
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.messages import Metrics, SyncEvaluators, VersionEvaluated, VersionServed
from headrace.actors.session import SessionSpec, Task, Trajectory
from headrace.transport import Context, TransportError, UnknownActor

logger = logging.getLogger(__name__)

LEARNER = "learner"
INITIAL_VERSION = 0
"""What the model folder held."""
_WAIT_S = 30.0
_SYNC_TIMEOUT_S = 120.0
_SYNC_TRIES = 60
_SYNC_PAUSE_S = 0.5
_EDITIONS_A_LIFE = 1000
_PASS_AT = re.compile(r"pass_at_\d+")


class Evaluator:
    """`settings` None, or zero prompts: no evaluation is ever made."""

    def __init__(self, settings: EvaluationSettings | None, *, seed: int, max_tokens: int) -> None:
        self._settings = settings if settings is not None and settings.is_made else None
        self._seed = seed
        self._max_tokens = max_tokens
        self._schedule = EvaluationSchedule(self._settings.every_steps if self._settings else 1)
        self._evaluation: Evaluation | None = None
        self._tasks: list[Task] = []
        self._final_version: int | None = None
        self._last_version: int | None = None
        self._edition = 0
        self._num_joined = 0
        self._evaluating = False
        self._work = asyncio.Event()
        self._complete = asyncio.Event()

    async def begin(
        self,
        context: Context,
        tasks: TaskSource,
        *,
        wake: Callable[[], None],
        stop_sessions: Callable[[list[tuple[str, int]]], None],
        durable: Callable[[], Awaitable[None]],
        counted: Callable[[int, int], int],
    ) -> None:
        """`wake` makes the dispatcher place sessions; `stop_sessions` cancels them where they run; `durable` returns
        when the journal has what `facts` says; `counted` as in `VersionSteps`."""
        self._context = context
        self._wake = wake
        self._stop_sessions = stop_sessions
        self._durable = durable
        self._counted = counted
        if self._settings is not None:
            self._tasks = await context.run_blocking(tasks.held_out, self._settings.num_prompts, label="held-out tasks")

    # --- the journal ------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What a successor must know. An evaluation under way is due for it: it is made again."""
        return {
            "evaluation_due": self._schedule.due or self._evaluating,
            "evaluation_next_due": self._schedule.next_due,
            "evaluated_version": self._last_version,
            "final_version": self._final_version,
        }

    def restore(self, facts: Mapping[str, Any], *, life: int, over: bool, serving: bool) -> None:
        """over: whether training is over where the facts say so; the learner of a resumed run says it itself. serving:
        whether there are versions to evaluate already."""
        self._schedule.restore(due=facts["evaluation_due"], next_due=facts["evaluation_next_due"])
        self._last_version = facts["evaluated_version"]
        self._final_version = facts["final_version"] if over else None
        self._edition = life * _EDITIONS_A_LIFE
        if serving:
            self._work.set()

    def gauges(self) -> dict[str, float]:
        """How far the evaluation under way is; `evaluation/sessions` 0 where none is."""
        if self._evaluation is None:
            return {"evaluation/sessions": 0.0}
        sessions, open_ = self._evaluation.num_sessions, self._evaluation.num_open
        return {"evaluation/sessions": float(sessions), "evaluation/ended": float(sessions - open_)}

    @property
    def role(self) -> str | None:
        """Who serves evaluations."""
        return self._settings.role if self._settings else None

    # --- the dispatcher's handlers call these -----------------------------------------------------------------------

    def owns(self, session_id: str) -> bool:
        return self._evaluation is not None and session_id in self._evaluation

    @property
    def num_seated(self) -> int:
        return self._evaluation.num_seated if self._evaluation else 0

    def next_session(self) -> SessionSpec | None:
        return self._evaluation.next_session() if self._evaluation else None

    def started(self, session_id: str, environment: str, now_s: float) -> None:
        if self._evaluation is not None:
            self._evaluation.started(session_id, environment)

    def not_started(self, session_id: str) -> None:
        if self._evaluation is not None:
            self._evaluation.not_started(session_id)

    def moved(self, session_id: str, attempt: int, grader: str) -> None:
        if self._evaluation is not None:
            self._evaluation.moved(session_id, attempt, grader)

    def held_by(self, actor: str) -> list[str]:
        return self._evaluation.held_by(actor) if self._evaluation else []

    def attempt_of(self, session_id: str) -> int | None:
        return self._evaluation.attempt_of(session_id) if self._evaluation else None

    def graded(self, trajectory: Trajectory) -> None:
        if self._evaluation is not None:
            self._evaluation.graded(trajectory)
            self._note_completion()

    def failed(self, session_id: str, attempt: int, reason: str, detail: str) -> None:
        if self._evaluation is not None:
            self._evaluation.failed(session_id, attempt, lost=reason == DropReason.LOST)
            self._note_completion()

    def served(self, step: int) -> None:
        """Generators serve a version with this step."""
        if self._schedule.served(step):
            self._work.set()

    def joined(self) -> None:
        """An evaluator came up. It serves nothing before the next `SyncEvaluators`: the sessions of an evaluation under
        way that go to it would wait in vain, so that it is made again."""
        self._num_joined += 1
        self._complete.set()

    def finish(self, version: int) -> None:
        """Training is over; its last version is `version`."""
        self._final_version = version
        self._work.set()

    def roll_back(self, step: int, *, reopened: bool) -> None:
        """The learner goes on from an earlier step. `reopened`: its training was over, and is not any more."""
        self._schedule.roll_back(step)
        if reopened:
            self._final_version = None

    def _note_completion(self) -> None:
        if self._evaluation is not None and self._evaluation.complete:
            self._complete.set()

    async def begin_alone(self, num_evaluators: int) -> None:
        """There is no learner, so no version ever comes: with so many evaluators there (for as long as their supervisor
        waits for them), what they have to begin with is evaluated, and then the run is over."""
        assert self._settings is not None, "checked by the dispatcher"
        evaluators = self._context.group(self._settings.role)
        while len(evaluators.members()) < num_evaluators:
            try:
                await evaluators.wait_for(num_evaluators, timeout_s=_WAIT_S)
            except UnknownActor:
                present = len(evaluators.members())
                logger.info("%d of %d evaluators are there; waiting for the others", present, num_evaluators)
        self.finish(INITIAL_VERSION)

    # --- the task -----------------------------------------------------------------------------------------------------

    async def run_until_finished(self) -> None:
        """Evaluates when it is due, one at a time; returns after the evaluation of the final version."""
        while True:
            await self._work.wait()
            self._work.clear()
            final = self._final_version
            if self._settings is not None and (self._schedule.due if final is None else final != self._last_version):
                await self._evaluate(self._settings, at_least=final or 0)
            if final is not None and self._final_version is not None:
                return

    async def _evaluate(self, settings: EvaluationSettings, *, at_least: int) -> None:
        self._evaluating = True
        try:
            while not await self._evaluate_once(settings, at_least):
                self._edition += 1
        finally:
            self._evaluating = False
        await self._durable()

    async def _evaluate_once(self, settings: EvaluationSettings, at_least: int) -> bool:
        """False where it must be made again, since an evaluator joined."""
        num_joined = self._num_joined
        held = await self._hold_version(settings, at_least)
        if held is None or self._num_joined != num_joined:
            return held is None
        clock = self._context.clock
        began_s = clock.time()
        evaluation = Evaluation(
            settings,
            self._tasks,
            version=held.version,
            step=held.step,
            max_tokens=self._max_tokens,
            seed=self._seed,
            edition=self._edition,
        )
        self._schedule.begin(self._counted(held.version, held.step))
        self._complete.clear()
        self._evaluation = evaluation
        self._wake()
        try:
            async with asyncio.timeout(settings.timeout_s):
                await self._complete.wait()
        except TimeoutError:
            logger.error(
                "the evaluation of version %d is given up after %g s; %d open sessions (e.g. %s) count as missing",
                held.version,
                settings.timeout_s,
                evaluation.num_open,
                ", ".join(evaluation.open_ids()[:8]),
            )
            self._stop_sessions(evaluation.abandon())
        if not evaluation.complete:
            logger.warning("the evaluation of version %d is made again: an evaluator has joined", held.version)
            self._stop_sessions(evaluation.abandon())
            self._evaluation = None
            return False
        await self._publish(evaluation, clock.time() - began_s)
        self._evaluation = None
        self._last_version = held.version
        return True

    async def _hold_version(self, settings: EvaluationSettings, at_least: int) -> VersionServed | None:
        """Evaluators get the newest version and hold it. The final one may still be on its way: asked for again."""
        held: VersionServed | None = None
        for _ in range(_SYNC_TRIES):
            try:
                held = await self._context.ask("parameter_server", SyncEvaluators(), timeout_s=_SYNC_TIMEOUT_S)
            except TransportError as error:
                logger.warning("the evaluators did not get a version, asking again: %s", error)
            if held is not None and held.version >= at_least:
                return held
            await self._context.clock.sleep(_SYNC_PAUSE_S)
        if held is None:
            logger.error(
                "no evaluation: the parameter server could not give %r a version in %d tries",
                settings.role,
                _SYNC_TRIES,
            )
        else:
            logger.warning("version %d never came; the evaluation is of version %d", at_least, held.version)
        return held

    async def _publish(self, evaluation: Evaluation, wall_s: float) -> None:
        values = evaluation.values() | {"wall_s": wall_s}
        logger.log(
            logging.WARNING if evaluation.num_missing else logging.INFO,
            "evaluation of version %d (step %d) in %.1f s: %s",
            evaluation.version,
            evaluation.step,
            wall_s,
            in_words(values),
        )
        try:
            await self._context.tell("monitor", Metrics("eval", "version", float(evaluation.version), values))
        except TransportError as error:
            logger.error("the monitor did not get the evaluation of version %d: %s", evaluation.version, error)
        score = values.get("reward", values.get("greedy"))
        if score is not None:
            self._context.tell_soon(LEARNER, VersionEvaluated(evaluation.version, evaluation.step, score))


def in_words(values: dict[str, float]) -> str:
    """The figures of an evaluation for the log; what is missing is said, since the means leave it out."""
    sessions, missing = values["sessions"], values["missing"]
    named = {"reward": "reward", "greedy": "greedy"}
    named |= {name: f"pass@{name.removeprefix('pass_at_')}" for name in values if _PASS_AT.fullmatch(name)}
    figures = ", ".join(
        f"{label} {values[name]:.3f} ± {values[f'{name}_stderr']:.3f}"
        for name, label in named.items()
        if name in values
    )
    if not figures:
        return f"NO RESULT: none of its {sessions:.0f} sessions has a reward (see the graders' log)"
    if not missing:
        return figures
    return f"{figures}; {missing:.0f} of {sessions:.0f} sessions are MISSING and not in these figures"
