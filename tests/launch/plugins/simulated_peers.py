"""Peers of the real dispatcher that only wait: for runs in virtual time."""

from __future__ import annotations

import random

import numpy as np

from headrace.actors.messages import (
    Accepted,
    Batch,
    BatchTrained,
    CancelSessions,
    GradeSession,
    NextBatch,
    RunSessions,
    SessionGraded,
    SessionsMoved,
    TrainingFinished,
    VersionServed,
)
from headrace.actors.session import ChatMessage, SessionSpec, Task, Trajectory, Turn
from headrace.transport import Actor, Context, handles


class CountingTasks:
    def task(self, index: int) -> Task:
        return Task(f"t{index}", "counting", (ChatMessage("user", f"say {index}"),), str(index))

    def held_out(self, num: int) -> list[Task]:
        return []

    def fingerprint(self) -> str:
        return "counting"


class SimulatedEnvironment(Actor):
    def __init__(self, *, slots: int) -> None:
        self._slots = slots

    def metadata(self) -> dict[str, object]:
        return {"slots": self._slots}

    @handles(RunSessions)
    async def run_sessions(self, message: RunSessions) -> Accepted:
        for spec in message.sessions:
            self.context.spawn(self._run(spec), spec.session_id)
        return Accepted()

    @handles(CancelSessions)
    async def cancel(self, message: CancelSessions) -> None:
        """What was cancelled comes late and is ignored."""

    async def _run(self, spec: SessionSpec) -> None:
        await self.context.clock.sleep(random.Random(spec.session_id).expovariate(1.0))
        trajectory = Trajectory(
            spec=spec,
            token_ids=np.array([1, 2], dtype=np.int32),
            logprobs=np.array([0.0, -0.5], dtype=np.float32),
            loss_mask=np.array([False, True]),
            versions=np.array([-1, 1], dtype=np.int32),
            turns=(Turn(1, 2, "stop"),),
            messages=(),
            ending="done",
        )
        await self.context.ask("grader", GradeSession(trajectory), timeout_s=60)
        await self.context.tell("dispatcher", SessionsMoved(((spec.session_id, spec.attempt),), "grader/0"))


class SimulatedGrader(Actor):
    @handles(GradeSession, concurrent=True)
    async def grade(self, message: GradeSession) -> Accepted:
        graded = message.trajectory.graded(float(message.trajectory.spec.member % 2), {})
        await self.context.ask("dispatcher", SessionGraded(graded), timeout_s=60)
        return Accepted()


class SimulatedLearner(Actor):
    def __init__(self, *, steps: int) -> None:
        self._steps = steps

    async def on_start(self, context: Context) -> None:
        context.spawn(self._learn(), "learn")

    async def _learn(self) -> None:
        ask = self.context.ask
        for step in range(self._steps):
            await self.context.tell("dispatcher", VersionServed(step + 1, step))
            batch = Batch(())
            while not batch.groups:
                batch = await ask("dispatcher", NextBatch(step, 5.0), timeout_s=60)
            await self.context.clock.sleep(1.0)
            ids = tuple(t.spec.session_id for group in batch.groups for t in group.trajectories)
            await ask("dispatcher", BatchTrained(step + 1, ids), timeout_s=60)
        await ask("dispatcher", TrainingFinished(self._steps, self._steps), timeout_s=60)
