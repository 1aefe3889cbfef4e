"""Scripted peers of the dispatcher: every other actor kind, without engines, tools or models, in virtual or real time.

A session samples one token at its start and one at its end, each with the version that serves at that moment. Loaded
by file (conftest's fixture `peers`): tests are no package.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from headrace.actors.learner.dispatcher_link import DispatcherLink
from headrace.actors.messages import (
    Accepted,
    Batch,
    BatchTrained,
    CancelSessions,
    GradeSession,
    LearnerResumed,
    Metrics,
    NextBatch,
    RunFinished,
    RunSessions,
    SessionFailed,
    SessionGraded,
    SessionsHeld,
    SessionsMoved,
    SyncEvaluators,
    TrainingFinished,
    VersionServed,
    WhichSessions,
)
from headrace.actors.session import SessionSpec, Trajectory, Turn
from headrace.transport import Actor, Context, PeerUp, TransportError, handles


@dataclass
class World:
    """What the scripted actors share: the version in service, latencies, and what they saw."""

    seed: int = 0
    version: int = 0
    steps: dict[int, int] = field(default_factory=lambda: {0: 0})
    session_s: Callable[[random.Random], float] = lambda rng: rng.lognormvariate(0.0, 1.0)
    grade_s: float = 0.05
    train_s: float = 1.0
    publish_s: float = 0.3
    reward: Callable[[SessionSpec], float | None] = lambda spec: float(spec.member % 2)
    fails: Callable[[SessionSpec], bool] = lambda spec: False
    trained: list[tuple[int, str, int]] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    num_finished: int = 0
    checkpoint: int = 0
    parted: dict[int, int] = field(default_factory=dict)
    ever_trained: list[str] = field(default_factory=list)
    learner_waited_s: float = 0.0
    environments_at_end: tuple[str, ...] = ()


class ScriptedEnvironment(Actor):
    def __init__(self, *, world: World, slots: int) -> None:
        self.world, self.slots = world, slots
        self.sessions: dict[str, asyncio.Task[None]] = {}
        self.attempts: dict[str, int] = {}

    async def on_start(self, context: Context) -> None:
        self.dispatcher = DispatcherLink(context, patience_s=600)

    @handles(WhichSessions)
    async def which(self, message: WhichSessions) -> SessionsHeld:
        held = tuple((session_id, self.attempts[session_id]) for session_id in self.sessions)
        return SessionsHeld(held, self.context.incarnation, self.slots)

    def metadata(self) -> dict[str, object]:
        return {"slots": self.slots}

    def has_work(self) -> bool:
        return bool(self.sessions)

    @handles(RunSessions)
    async def run_sessions(self, message: RunSessions) -> Accepted:
        assert len(self.sessions) + len(message.sessions) <= self.slots, "the dispatcher exceeded the slots"
        for spec in message.sessions:
            self.attempts[spec.session_id] = spec.attempt
            self.sessions[spec.session_id] = self.context.spawn(self._run(spec), spec.session_id)
        return Accepted()

    @handles(CancelSessions)
    async def cancel(self, message: CancelSessions) -> Accepted:
        for session_id, _ in message.sessions:
            task = self.sessions.pop(session_id, None)
            if task is not None:
                task.cancel()
                self.world.cancelled.append(session_id)
        return Accepted()

    async def _run(self, spec: SessionSpec) -> None:
        world, clock = self.world, self.context.clock
        first = world.version
        rng = random.Random(f"{world.seed}:{spec.session_id}:{spec.attempt}")
        await clock.sleep(world.session_s(rng))
        if world.fails(spec):
            del self.sessions[spec.session_id]
            failed = SessionFailed(spec.session_id, spec.attempt, "failed", "scripted")
            await self.dispatcher.ask(failed, timeout_s=60)
            return
        last = first if spec.purpose == "eval" else world.version
        trajectory = Trajectory(
            spec=spec,
            token_ids=np.array([1, 2 + spec.member, 3], dtype=np.int32),
            logprobs=np.array([0.0, -0.5, -0.5], dtype=np.float32),
            loss_mask=np.array([False, True, True]),
            versions=np.array([-1, first, last], dtype=np.int32),
            turns=(Turn(1, 3, "stop"),),
            messages=(),
            ending="done",
        )
        while True:
            grader = self.context.group("grader").pick() or "grader/0"
            try:
                await self.context.ask(grader, GradeSession(trajectory), timeout_s=60)
                break
            except TransportError:
                continue
        del self.sessions[spec.session_id]
        await self.context.tell("dispatcher", SessionsMoved(((spec.session_id, spec.attempt),), grader))


class ScriptedGrader(Actor):
    def __init__(self, *, world: World) -> None:
        self.world = world
        self.held: set[tuple[str, int]] = set()

    @handles(WhichSessions)
    async def which(self, message: WhichSessions) -> SessionsHeld:
        return SessionsHeld(tuple(sorted(self.held)), self.context.incarnation)

    @handles(GradeSession)
    async def grade(self, message: GradeSession) -> Accepted:
        spec = message.trajectory.spec
        self.held.add((spec.session_id, spec.attempt))
        self.context.spawn(self._grade(message.trajectory), spec.session_id)
        return Accepted(self.context.incarnation)

    async def _grade(self, trajectory: Trajectory) -> None:
        await self.context.clock.sleep(self.world.grade_s)
        graded = trajectory.graded(self.world.reward(trajectory.spec), {})
        await DispatcherLink(self.context, patience_s=600).ask(SessionGraded(graded), timeout_s=60)
        self.held.discard((trajectory.spec.session_id, trajectory.spec.attempt))


class ScriptedLearner(Actor):
    """Saves a checkpoint every `save_every` steps and goes on from it when it is made anew for the same world."""

    def __init__(self, *, world: World, max_steps: int, save_every: int = 1) -> None:
        self.world, self.max_steps, self.save_every = world, max_steps, save_every

    async def on_start(self, context: Context) -> None:
        self.dispatcher = DispatcherLink(context, patience_s=600)
        context.spawn(self._train(), "train")

    async def _train(self) -> None:
        world, context = self.world, self.context
        step = world.checkpoint
        if world.version:
            world.trained = [entry for entry in world.trained if entry[0] <= step]
            world.parted = {version: min(at, step) for version, at in (world.steps | world.parted).items()}
            await self.dispatcher.ask(LearnerResumed(step, world.version, goes_on=True), timeout_s=60)
        await self._publish(step)
        while step < self.max_steps:
            began_s = context.clock.time()
            batch: Batch = await self.dispatcher.ask(NextBatch(step, 5.0), timeout_s=60)
            world.learner_waited_s += context.clock.time() - began_s
            if not batch.groups:
                continue
            await context.clock.sleep(world.train_s)
            step += 1
            trajectories = [t for group in batch.groups for t in group.trajectories]
            for trajectory in trajectories:
                lag = step - 1 - (world.steps | world.parted)[trajectory.oldest_version]
                world.trained.append((step, trajectory.spec.session_id, lag))
                world.ever_trained.append(trajectory.spec.session_id)
            world.batch_sizes.append(len(trajectories))
            ids = tuple(t.spec.session_id for t in trajectories)
            await self.dispatcher.ask(BatchTrained(step, ids), timeout_s=60)
            context.spawn(self._publish(step), f"publish {step}")
            if step % self.save_every == 0:
                world.checkpoint = step
        await context.clock.sleep(2 * world.publish_s)
        await self.dispatcher.ask(TrainingFinished(step, world.version), timeout_s=60)

    async def _publish(self, step: int) -> None:
        await self.context.clock.sleep(self.world.publish_s)
        version = self.world.version + 1
        self.world.steps[version] = step
        self.world.version = version
        await self.context.clock.sleep(0.01)  # tokens of the version overtake the news of it
        await self.context.tell("parameter_server", VersionServed(version, step))


class ScriptedParameterServer(Actor):
    """Passes on what is served, and says it again to a dispatcher that comes up."""

    def __init__(self, *, world: World) -> None:
        self.world = world
        self.served: VersionServed | None = None

    async def on_start(self, context: Context) -> None:
        context.watch("dispatcher")

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        if self.served is not None:
            self.context.tell_soon("dispatcher", self.served)

    @handles(VersionServed)
    async def pass_on(self, message: VersionServed) -> None:
        self.served = message
        self.context.tell_soon("dispatcher", message)

    @handles(SyncEvaluators)
    async def sync(self, message: SyncEvaluators) -> VersionServed:
        return VersionServed(self.world.version, self.world.steps[self.world.version])


class Collector(Actor):
    """The monitor and the supervisor in one."""

    def __init__(self, *, world: World) -> None:
        self.world = world

    @handles(Metrics)
    async def take(self, message: Metrics) -> None:
        self.world.metrics.append(message)

    @handles(RunFinished)
    async def end(self, message: RunFinished) -> Accepted:
        self.world.num_finished += 1
        self.world.finished.set()
        return Accepted()
