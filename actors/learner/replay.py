"""Steps of a run once more, from its folder alone and without any other actor: the recorded batches, through the same
workbench and trainer, upon the weights of the newest checkpoint before them.

    trained.jsonl         which sessions went into which step, in what order; its loss and gradient norm
    trajectories/*.jsonl  their tokens, log-probs, versions and rewards
    checkpoints/          weights, optimizer, versions.jsonl, what a KL penalty or adapters go upon

Nothing is written into the run folder: the workbench is given a scratch folder whose checkpoint, reference and base are
links. Where every step from the checkpoint on gives the recorded numbers, the run is a function of its folder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headrace.actors.learner.advantages import Advantage
from headrace.actors.learner.checkpoint import BASE, REFERENCE, list_checkpoints, read_info
from headrace.actors.learner.intake import Intake, take_in
from headrace.actors.learner.penalties import RewardPenalty
from headrace.actors.learner.recipe import Recipe
from headrace.actors.learner.threads import ComputeThreads
from headrace.actors.learner.trained_log import TrainedLog, TrainedStep, finite
from headrace.actors.learner.versions import VersionLog
from headrace.actors.session import Group
from headrace.actors.session.recorded import read_trajectories

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a replay begins: `step` steps done; `checkpoint` None: with the model folder, before the first."""

    step: int
    checkpoint: Path | None


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """What was recorded of a step, and what came of it now (the same kind of record; None where nothing is trained)."""

    recorded: TrainedStep
    again: TrainedStep

    @property
    def same(self) -> bool:
        """To the last bit."""
        return (self.recorded.loss, self.recorded.grad_norm) == (self.again.loss, self.again.grad_norm)

    @property
    def difference(self) -> float:
        """The larger relative difference of loss and gradient norm; inf where only one side has a number."""
        pairs = ((self.recorded.loss, self.again.loss), (self.recorded.grad_norm, self.again.grad_norm))
        return max(_relative(before, now) for before, now in pairs)


class RecordedRun:
    """What `folder` says of the steps of its run. Raises ValueError where that is not enough for step `step`.
    from_model: whether step 0 has the weights of the model folder (there is no stage before `rl`)."""

    def __init__(self, folder: Path, step: int, *, from_model: bool) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self._entries = {entry.step: entry for entry in TrainedLog(folder / "trained.jsonl").steps()}
        if step not in self._entries:
            raise ValueError(
                f"{folder / 'trained.jsonl'} has no step {step}; it has "
                + (
                    f"steps 1 to {max(self._entries)}"
                    if self._entries
                    else "none: learner.trained_path was null, or no step came"
                )
            )
        self.step = step
        self.start = self._start(from_model)
        self.version_steps = VersionLog(self.checkpoints / "versions.jsonl").steps

    def _start(self, from_model: bool) -> Start:
        found = {read_info(folder).step: folder for folder in list_checkpoints(self.checkpoints)}
        before = max((step for step in found if step < self.step), default=None)
        if before is not None:
            return Start(before, found[before])
        if from_model:
            return Start(0, None)
        raise ValueError(
            f"no checkpoint of {self.checkpoints} is from before step {self.step} (there are those of steps "
            f"{', '.join(map(str, sorted(found))) or 'none'}), so that the weights it began with are gone; replay a "
            "step after the first of these, and for any step of a later run set learner.checkpoint_every_steps=K and "
            "learner.checkpoint_keep_last to training.max_steps / K + 1 at least"
        )

    def entries(self, first: int, last: int) -> list[TrainedStep]:
        """Of those steps, bounds included. Raises ValueError where one is not recorded."""
        missing = [step for step in range(first, last + 1) if step not in self._entries]
        if missing:
            raise ValueError(f"{self.folder / 'trained.jsonl'} lacks step {missing[0]}, which lies on the way")
        return [self._entries[step] for step in range(first, last + 1)]

    def groups(self, entries: Iterable[TrainedStep]) -> dict[int, tuple[Group, ...]]:
        """step → the groups of its batch, as the learner had them. Raises ValueError where a session is missing."""
        entries = list(entries)
        attempts = {
            session_id: entry.attempts.get(session_id, 0)
            for entry in entries
            for session_id in (*entry.session_ids, *entry.left_out)
        }
        trajectories = read_trajectories(self.folder / "trajectories", attempts)
        missing = sorted(attempts.keys() - trajectories.keys())
        if missing:
            raise ValueError(
                f"{self.folder / 'trajectories'} lacks {len(missing)} sessions of the steps that are replayed, e.g. "
                f"{missing[0]} (attempt {attempts[missing[0]] + 1}); has a shard been moved away?"
            )
        found: dict[int, tuple[Group, ...]] = {}
        for entry in entries:
            members: dict[str, list[Any]] = {}
            for session_id in (*entry.session_ids, *entry.left_out):
                trajectory = trajectories[session_id].without_older(entry.oldest_version or 0)
                members.setdefault(trajectory.spec.group_id, []).append(trajectory)
            found[entry.step] = tuple(Group(group_id, tuple(own)) for group_id, own in members.items())
        return found

    def link_into(self, scratch: Path) -> None:
        """What a workbench needs of the checkpoints, as links in `scratch`."""
        scratch.mkdir(parents=True, exist_ok=True)
        names = [name for name in (REFERENCE, BASE) if (self.checkpoints / name).exists()]
        if self.start.checkpoint is not None:
            names.append(self.start.checkpoint.name)
        for name in names:
            os.symlink((self.checkpoints / name).resolve(), scratch / name, target_is_directory=True)


async def replay(run: RecordedRun, recipe: Recipe, told: Callable[[ReplayedStep], None]) -> ReplayedStep:
    """Steps from the checkpoint to `run.step`, each told of as it is done; returns the last. The learner of `recipe`
    has its checkpoints in the folder that `link_into` filled."""
    threads = ComputeThreads(_Offline(), num_threads=recipe.num_threads)
    bench = await threads.run("load", recipe.make_bench, threads)
    if bench.progress.step != run.start.step:
        raise ValueError(f"the workbench is at step {bench.progress.step}, {run.start} was expected")
    await bench.adapt()
    if recipe.kl is not None:
        if run.start.checkpoint is not None and bench.policy.adapters is None:
            _check_reference(run.checkpoints)
        await bench.penalise(recipe.kl)
    entries = run.entries(run.start.step + 1, run.step)
    groups = run.groups(entries)
    last: ReplayedStep | None = None
    for entry in entries:
        intake = _take_in(entry, groups[entry.step], recipe.advantage, recipe.penalties, run.version_steps)
        again = TrainedStep(entry.step, intake.session_ids or entry.session_ids)
        if intake.sequences:
            lr = recipe.learning_rate.at(entry.step - 1)
            report = await threads.run("train", bench.trainer.step, intake.sequences, lr)
            again = TrainedStep(
                entry.step,
                intake.session_ids,
                num_tokens=sum(sequence.num_trained for sequence in intake.sequences),
                num_updates=report.num_updates,
                loss=finite(report.loss),
                grad_norm=finite(report.grad_norm),
            )
        last = ReplayedStep(entry, again)
        told(last)
    assert last is not None, "a replay has at least the step that was asked for"
    return last


def _take_in(
    entry: TrainedStep,
    groups: Sequence[Group],
    advantage: Advantage,
    penalties: Mapping[str, RewardPenalty],
    version_steps: Mapping[int, int],
) -> Intake:
    """Raises ValueError where the batch is not the one that was trained."""
    intake = take_in(groups, advantage, penalties=penalties, version_steps=version_steps, steps_done=entry.step - 1)
    trained = entry.session_ids if entry.num_tokens else ()
    num_tokens = sum(sequence.num_trained for sequence in intake.sequences)
    if (intake.session_ids, num_tokens) != (trained, entry.num_tokens):
        raise ValueError(
            f"the records of step {entry.step} give {len(intake.session_ids)} sessions with {num_tokens} trained "
            f"tokens (left out: {dict(intake.refused)}), and {len(trained)} with {entry.num_tokens} were trained; are "
            "trajectories/ and trained.jsonl of one run?"
        )
    return intake


def _check_reference(checkpoints: Path) -> None:
    if not (checkpoints / REFERENCE).is_dir():
        raise ValueError(
            f"{checkpoints / REFERENCE} is missing, the weights that learner.kl compares with; has the run folder been "
            "moved apart?"
        )


def _relative(before: float | None, now: float | None) -> float:
    if before is None or now is None:
        return 0.0 if before is now else float("inf")
    return abs(before - now) / max(abs(before), abs(now), 1e-300)


class _Offline:
    """In place of an actor's context: nobody asks how busy this is."""

    async def run_blocking(
        self, function: Callable[..., T], *args: Any, label: str | None = None, executor: Executor | None = None
    ) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, function, *args)
