"""The `rl` stage: batch in, optimizer step, weights out, until `max_steps` or `max_wall_s`.

    consumes  Batch        ask NextBatch → dispatcher, held there until groups are ready; it unblocks us
    produces  BatchTrained ask → dispatcher, after each optimizer step, with the sessions that went into it
              weights      through the publisher, which in async mode never makes us wait
    waits for the dispatcher (NextBatch), its own worker thread, and in sync mode for generators to serve each version

`step` counts batches. One of which nothing can be trained (all rewards missing, everything refused) takes no
optimizer step and changes no weight, yet it is acknowledged and counted as a step: admission and publication go by
that counter, and would come to rest otherwise. The metric `skipped_batches` counts them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headrace.actors.learner.advantages.protocol import Advantage
from headrace.actors.learner.dispatcher_link import DispatcherLink
from headrace.actors.learner.figures.alarms import Alarms
from headrace.actors.learner.figures.step import step_figures
from headrace.actors.learner.intake import Intake, take_in
from headrace.actors.learner.making_room import EnginesAsleep
from headrace.actors.learner.penalties import RewardPenalty
from headrace.actors.learner.publisher import Publisher
from headrace.actors.learner.schedule import LearningRate
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.stages.settings import Progress, RlSettings
from headrace.actors.learner.trained_log import TrainedLog, TrainedStep
from headrace.actors.learner.trainer import StepReport, Trainer
from headrace.actors.learner.versions import VersionLog
from headrace.actors.messages import Batch, BatchTrained, NextBatch
from headrace.transport import Clock

logger = logging.getLogger(__name__)

SKIPPED_PAUSE_S = 2.0
"""After a publication that found no free buffer, until the next try."""
REPLY_GRACE_S = 60.0
"""What an ask may take beyond the time that the dispatcher itself holds it."""


class RlStage:
    """`run` runs a function in the worker thread; `report(step, figures)` sends metrics; `after_step` saves when
    due; `room`: engines that sleep meanwhile, None where they need not."""

    def __init__(
        self,
        settings: RlSettings,
        progress: Progress,
        *,
        clock: Clock,
        dispatcher: DispatcherLink,
        trained: TrainedLog,
        trainer: Trainer,
        advantage: Advantage,
        penalties: Mapping[str, RewardPenalty],
        learning_rate: LearningRate,
        publisher: Publisher,
        versions: VersionLog,
        run: Callable[..., Any],
        report: Callable[[int, dict[str, float]], None],
        after_step: Callable[[], Any],
        room: EnginesAsleep | None = None,
    ) -> None:
        self._settings = settings
        self.progress = progress
        self._clock = clock
        self._dispatcher = dispatcher
        self._trained = trained
        self._trainer = trainer
        self._advantage = advantage
        self._penalties = penalties
        self._learning_rate = learning_rate
        self._publisher = publisher
        self._versions = versions
        self._run = run
        self._report = report
        self._after_step = after_step
        self._room = room
        self._alarms = Alarms(progress.first_mismatch)

    async def run(self) -> None:
        clock = self._clock
        began_s = clock.time() - self.progress.wall_s
        while self.progress.step < self._settings.max_steps:
            self.progress.wall_s = clock.time() - began_s
            left_s = float("inf")
            if self._settings.max_wall_s is not None:
                left_s = self._settings.max_wall_s - self.progress.wall_s
            if left_s <= 0:
                logger.info("max_wall_s reached at step %d", self.progress.step)
                return
            waited_from_s = clock.time()
            batch = await self._next_batch(min(self._wait_s, left_s))
            if batch.groups:
                await self._train(batch, wait_s=clock.time() - waited_from_s)
            elif self._settings.mode == "async":  # it may be these very weights that sessions wait for
                await self._publisher.publish_if_due(self.progress.step)

    @property
    def _wait_s(self) -> float:
        """Short where a publication was skipped for want of a buffer, or will be due meanwhile."""
        if self._settings.mode == "sync":
            return self._settings.wait_s
        due_in_s = self._publisher.due_in_s(self.progress.step)
        return min(self._settings.wait_s, due_in_s if due_in_s > 0 else SKIPPED_PAUSE_S)

    async def _next_batch(self, wait_s: float) -> Batch:
        request = NextBatch(step=self.progress.step, wait_s=wait_s)
        batch: Batch = await self._dispatcher.ask(request, timeout_s=wait_s + REPLY_GRACE_S)
        return batch

    async def _train(self, batch: Batch, *, wait_s: float) -> None:
        clock = self._clock
        steps_done = self.progress.step
        intake = take_in(
            batch.groups,
            self._advantage,
            penalties=self._penalties,
            version_steps={**batch.version_steps, **self._versions.steps},
            steps_done=steps_done,
            num_failed=batch.num_failed,
        )
        entry = entry_of(batch, intake, steps_done + 1)
        session_ids = entry.session_ids
        figures = intake.figures()
        figures["seconds/wait"] = wait_s
        figures["steps_total"] = float(self._settings.max_steps)
        if intake.sequences:
            lr = self._learning_rate.at(steps_done)
            if self._room is not None:
                making_from_s = clock.time()
                figures["engines_asleep"] = float(await self._room.begin())
                figures["seconds/make_room"] = clock.time() - making_from_s
            report = await self._run("train", self._step, intake.sequences, entry, lr)
            if self._room is not None:
                await self._run("give memory back", self._room.end)
            figures |= step_figures(report)
        else:
            logger.warning("nothing to train in a batch of %d groups: %s", intake.num_groups, dict(intake.refused))
            await self._run("train", self._skip, entry)
        await self._dispatcher.ask(BatchTrained(self.progress.step, session_ids), timeout_s=REPLY_GRACE_S)
        publishing_from_s = clock.time()
        await self._publish()
        figures["seconds/publish"] = clock.time() - publishing_from_s
        figures["skipped_batches"] = float(self.progress.num_skipped)
        figures |= self._publisher.figures()
        figures |= self._alarms.update(self.progress.step, figures)
        self._report(self.progress.step, figures)
        await self._after_step()

    # In the worker thread, as all that reads weights there: a step is counted and recorded with the change that it
    # made, so that whoever stages or saves these weights next names the step that they hold, come a stop when it may.

    def _step(self, sequences: list[TrainSequence], entry: TrainedStep, lr: float) -> StepReport:
        report = self._trainer.step(sequences, lr)
        self._count(replace(entry, loss=report.loss, grad_norm=report.grad_norm, num_updates=report.num_updates))
        return report

    def _skip(self, entry: TrainedStep) -> None:
        self.progress.num_skipped += 1
        self._count(entry)

    def _count(self, entry: TrainedStep) -> None:
        self.progress.step += 1
        self._trained.append(entry)

    async def _publish(self) -> None:
        if self._settings.mode == "async":
            await self._publisher.publish_if_due(self.progress.step)
        else:  # the barrier: no session of the next batch starts before these weights serve
            await self._publisher.wait_served(await self._publisher.publish(self.progress.step))


def entry_of(batch: Batch, intake: Intake, step: int) -> TrainedStep:
    """What trained.jsonl keeps of it: the sessions that are trained or, where none is, all of the batch, so that the
    dispatcher does not wait."""
    specs = {t.spec.session_id: t.spec for group in batch.groups for t in group.trajectories}
    attempts = {session_id: spec.attempt for session_id, spec in specs.items() if spec.attempt}
    if not intake.sequences:
        return TrainedStep(step, tuple(specs), attempts=attempts)
    trained = set(intake.session_ids)
    return TrainedStep(
        step,
        intake.session_ids,
        left_out=tuple(session_id for session_id in specs if session_id not in trained),
        attempts=attempts,
        oldest_version=min(int(s.versions[s.loss_mask].min()) for s in intake.sequences),
        num_tokens=sum(s.num_trained for s in intake.sequences),
    )
