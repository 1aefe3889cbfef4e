"""The turn loop of one session: reset → (generate → parse → step)* → close → a trajectory.

    prompt ──▶ generate ──▶ parse ──▶ step ──▶ continuation ─┐      every arrow has a deadline
                  ▲                                          │      tokens are appended, never rewritten
                  └──────────────────────────────────────────┘

It knows neither actors nor peers: how to ask a generator is given to it. It ends in a Trajectory or a SessionError;
the environment is closed either way. Called by the environment actor, one instance a session.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from headrace.actors.environment.counters import SessionCounters
from headrace.actors.environment.environment import Environment, EnvironmentFactory, StepOutcome
from headrace.actors.environment.generation import AskGenerator, cut_by_length, generate
from headrace.actors.environment.phases import SessionError, Timeouts, within
from headrace.actors.environment.seeds import generation_seed
from headrace.actors.environment.tool_calls import ParsedTurn, ToolCallParser
from headrace.actors.messages import Completion, Generate
from headrace.actors.rendering import Renderer, before_stop
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Tool, Trajectory, TrajectoryBuilder
from headrace.actors.session.trajectory import Ending
from headrace.transport import Clock

T = TypeVar("T")
Account = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]
"""Wraps a call into an author's code so that its steps count as the actor's busy time."""

Phase = Literal["queued", "reset", "generate", "step", "close", "done"]


@dataclass(frozen=True, slots=True)
class SessionRules:
    """What holds for every session of an actor. `context_tokens`: prompt plus max_tokens of a turn never exceed it.
    `base_seed` None leaves sampling unseeded."""

    renderer: Renderer
    parser: ToolCallParser
    timeouts: Timeouts
    context_tokens: int
    max_turns: int = 1
    base_seed: int | None = 0
    max_generation_tries: int = 3


@dataclass(slots=True)
class Session:
    """`phase` says where it is, for whoever diagnoses a stall."""

    spec: SessionSpec
    factory: EnvironmentFactory
    rules: SessionRules
    ask: AskGenerator
    clock: Clock
    counters: SessionCounters
    account: Account = field(default=lambda coroutine: coroutine)
    phase: Phase = "queued"
    _builder: TrajectoryBuilder = field(init=False)
    _messages: list[ChatMessage] = field(default_factory=list)
    _tools: tuple[Tool, ...] = ()
    _timings_s: dict[str, float] = field(default_factory=dict)
    _notes: dict[str, str] = field(default_factory=dict)
    _deadline: float = 0.0
    _num_turns: int = 0

    def __post_init__(self) -> None:
        self._builder = TrajectoryBuilder(self.spec)

    async def run(self) -> Trajectory:
        """Raises SessionError with the reason where there is no trajectory; CancelledError passes, after closing."""
        started = self.clock.time()
        self._deadline = started + self.rules.timeouts.session_s
        environment = self._make_environment()
        try:
            await self._reset(environment)
            ending: Ending | None = None
            while ending is None:
                ending = await self._turn(environment)
        finally:
            await self._close(environment)
        self.phase = "done"
        self._timings_s["total"] = self.clock.time() - started
        self.counters.truncated += ending == "truncated"
        self.counters.context_full += ending == "context_full"
        return self._builder.build(
            messages=tuple(self._messages), ending=ending, timings_s=self._timings_s, notes=self._notes
        )

    async def _reset(self, environment: Environment) -> None:
        observation = await self._environment_phase(
            "reset", environment.reset(self.spec.task), self.rules.timeouts.reset_s
        )
        self._messages += observation.messages
        self._tools = observation.tools
        prompt = self.rules.renderer.prompt_ids(observation.messages, observation.tools)
        if not self._fits(len(prompt)):
            raise SessionError(
                "failed",
                f"the prompt has {len(prompt)} tokens; with sampling.max_tokens={self.spec.sampling.max_tokens} it "
                f"exceeds context_tokens={self.rules.context_tokens}; raise the one or lower the other",
                "prompt_too_long",
            )
        self._builder.add_context(prompt)

    async def _turn(self, environment: Environment) -> Ending | None:
        """One generation and what comes back. None: the assistant may speak again."""
        completion, cut = await self._generate()
        sampled = completion.token_ids.tolist()
        parsed = self._hear(sampled, cut)
        if cut:
            self._notes["ended_by"] = "max_tokens"
            return "truncated"
        outcome = await self._step(environment, parsed)
        if outcome.done:
            return "done"
        if self._num_turns >= self.rules.max_turns:
            self._notes["ended_by"] = "max_turns"
            return "truncated"
        continuation = self.rules.renderer.continuation_ids(outcome.messages, sampled=sampled)
        if not self._fits(len(self._builder) + len(continuation)):
            return "context_full"
        self._builder.add_context(continuation)
        self._messages += outcome.messages
        return None

    async def _generate(self) -> tuple[Completion, bool]:
        """The next generation, appended as it was sampled, and whether it was cut by its length."""
        self.phase = "generate"
        sampling = self._sampling()
        prompt = self._builder.token_ids
        before = self.clock.time()
        completion, retries = await generate(
            Generate(self.spec.session_id, prompt, sampling),
            ask=self.ask,
            clock=self.clock,
            deadline=self._deadline,
            timeout_s=self.rules.timeouts.generate_s,
            max_tries=self.rules.max_generation_tries,
        )
        seconds = self._took("generate", before)
        cut = cut_by_length(completion, sampling.max_tokens, sampling.stop_token_ids)
        self._append(prompt, completion, cut)
        self._num_turns += 1
        self.counters.turn(
            tokens_in=len(prompt), tokens_out=len(completion.token_ids), seconds=seconds, retries=retries
        )
        return completion, cut

    def _append(self, prompt: np.ndarray, completion: Completion, cut: bool) -> None:
        """The invariant of multi-turn training: what a turn saw is exactly what stands before it in the record."""
        if not np.array_equal(self._builder.token_ids, prompt):
            raise SessionError("failed", "the session's tokens changed while a turn was sampled", "prefix_mismatch")
        said = len(before_stop(completion.token_ids.tolist(), self._stop_token_ids())) + 1
        self._builder.add_generation(
            completion.token_ids[:said], completion.logprobs[:said], completion.versions[:said],
            "length" if cut else "stop",
        )  # fmt: skip
        # What an engine sampled past its stop token stands in the context, but is not graded: so it is not trained.
        self._builder.add_context(completion.token_ids[said:])

    def _hear(self, sampled: list[int], cut: bool) -> ParsedTurn:
        """The turn as a message and its calls. A turn that was cut has no calls: half a call is no call."""
        renderer = self.rules.renderer
        said = before_stop(sampled, self._stop_token_ids())
        parsed = ParsedTurn() if cut else self.rules.parser.parse(renderer.text(said, special_tokens=True), self._tools)
        self.counters.malformed_calls += len(parsed.malformed)
        self._messages.append(ChatMessage("assistant", renderer.text(said), parsed.calls))
        return parsed

    async def _step(self, environment: Environment, parsed: ParsedTurn) -> StepOutcome:
        """The environment's answer, then the malformed calls' observations. With malformed calls alone the environment
        is not asked: it would take a turn without calls for the final answer."""
        complaints = tuple(call.observation() for call in parsed.malformed)
        if complaints and not parsed.calls:
            return StepOutcome(complaints, done=False)
        outcome = await self._environment_phase(
            "step", environment.step(self._messages[-1]), self.rules.timeouts.step_s
        )
        if outcome.done:
            return outcome
        if not outcome.messages and not complaints:
            raise SessionError(
                "failed", "step returned neither messages nor done=True: nothing can follow", "environment_error"
            )
        return StepOutcome(outcome.messages + complaints, done=False)

    def _make_environment(self) -> Environment:
        try:
            return self.factory()
        except Exception as error:  # an author's code: its session fails, the actor goes on
            raise _environment_error("the environment's constructor", error) from error

    async def _environment_phase(
        self, phase: Literal["reset", "step"], coroutine: Coroutine[Any, Any, T], timeout_s: float
    ) -> T:
        self.phase = phase
        before = self.clock.time()
        what = f"{phase} after turn {self._num_turns}" if self._num_turns else phase
        try:
            return await within(self.account(coroutine), min(timeout_s, self._deadline - before), what)
        except SessionError:
            raise
        except Exception as error:  # an author's code: its session fails, the actor goes on
            raise _environment_error(what, error) from error
        finally:
            self._took(phase, before)

    async def _close(self, environment: Environment) -> None:
        """Bounded, and never the reason why a session fails: what it recorded is complete already."""
        self.phase = "close"
        before = self.clock.time()
        try:
            await within(self.account(environment.close()), self.rules.timeouts.close_s, "close")
        except Exception as error:  # an author's code, after the session's end: counted and noted
            self.counters.close_failures += 1
            self._notes["close"] = str(error)[:200]
        self._took("close", before)

    def _sampling(self) -> Sampling:
        seed = generation_seed(self.rules.base_seed, self.spec, self._num_turns)
        return replace(self.spec.sampling, stop_token_ids=self._stop_token_ids(), seed=seed)

    def _stop_token_ids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys([*self.spec.sampling.stop_token_ids, *self.rules.renderer.stop_token_ids]))

    def _fits(self, num_tokens: int) -> bool:
        return num_tokens + self.spec.sampling.max_tokens <= self.rules.context_tokens

    def _took(self, phase: str, before: float) -> float:
        seconds = self.clock.time() - before
        self._timings_s[phase] = self._timings_s.get(phase, 0.0) + seconds
        return seconds


def _environment_error(what: str, error: Exception) -> SessionError:
    detail = f"{what} raised:\n{''.join(traceback.format_exception(error))[-2000:]}"
    return SessionError("failed", detail, "environment_error")
