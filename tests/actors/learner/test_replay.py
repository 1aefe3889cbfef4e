"""A recorded step again, out of a folder that was written like a run's: with refused sessions, second attempts, masked
tokens and several updates a step. What a real run records is replayed in tests/test_replay_of_a_real_run.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.actors.grader.trajectory_shard import TrajectoryShard, to_line
from headrace.actors.learner.actor import Learner
from headrace.actors.learner.advantages import RunningMean
from headrace.actors.learner.intake import take_in
from headrace.actors.learner.kl import K2
from headrace.actors.learner.objectives import DecoupledPpo
from headrace.actors.learner.replay import RecordedRun, ReplayedStep, replay
from headrace.actors.learner.stages.rl import entry_of
from headrace.actors.learner.threads import ComputeThreads
from headrace.actors.learner.trained_log import TrainedLog
from headrace.actors.learner.versions import VersionLog
from headrace.actors.messages import Batch
from headrace.actors.session import ChatMessage, Group, Sampling, SessionSpec, Task, ToolCall, Trajectory, Turn
from headrace.actors.session.recorded import read_trajectories

STEPS = 5


class InPlace:
    """Runs what is to run in a thread here and now."""

    async def run_blocking(
        self, function: Callable[..., Any], *args: Any, label: Any = None, executor: Any = None
    ) -> Any:
        return function(*args)


def sampled(rng: np.random.Generator, step: int, group: int, member: int) -> Trajectory:
    """Five prompt tokens, two turns of four sampled ones by two versions, one token of tool output between them."""
    mask = np.array([False] * 5 + [True] * 4 + [False] + [True] * 4)
    group_id = f"g{step:03d}{group}"
    spec = SessionSpec(
        f"{group_id}-{member:02d}", group_id, member, "train", Task("t", f"class{group % 2}", ()), Sampling(0.7)
    )
    return Trajectory(
        spec=replace(spec, attempt=int(member == 1)),
        token_ids=rng.integers(3, 90, 14).astype(np.int32),
        logprobs=np.where(mask, rng.normal(-4.5, 0.7, 14), 0).astype(np.float32),
        loss_mask=mask,
        versions=np.where(mask, np.repeat([max(0, step - 2), max(0, step - 1)], 7), -1).astype(np.int32),
        turns=(Turn(5, 9, "stop"), Turn(10, 14, "stop")),
        messages=(ChatMessage("user", "?"), ChatMessage("assistant", "", (ToolCall("run", {"x": [1]}),))),
        ending="done",
        reward=None if (group, member) == (1, 2) else float(rng.random()),
    )


@pytest.fixture
def learner_of(model_folder: Path) -> Callable[[Path], Learner]:
    def make(checkpoints: Path, **settings: Any) -> Learner:
        given: dict[str, Any] = {
            "lr": 1e-2, "lr_schedule": "linear", "max_steps": 20, "num_threads": 1, "num_minibatches": 2,
            "num_epochs": 2, "objective": DecoupledPpo(proximal="interpolated"), "kl": K2(coefficient=0.1),
        }  # fmt: skip
        given |= settings
        return Learner(model_path=str(model_folder), checkpoints_dir=str(checkpoints), run_id="test", **given)

    return make


@pytest.fixture
def record(learner_of: Callable[..., Learner], tmp_path: Path) -> Callable[..., Path]:
    """A run of STEPS steps that saves after those in `saves`."""

    async def train(folder: Path, saves: set[int], settings: dict[str, Any]) -> None:
        recipe = learner_of(folder / "checkpoints", **settings).recipe()
        threads = ComputeThreads(InPlace(), num_threads=1)
        bench = recipe.make_bench(threads)
        if recipe.kl is not None:
            await bench.penalise(recipe.kl)
        versions = VersionLog(folder / "checkpoints" / "versions.jsonl")
        log = TrainedLog(folder / "trained.jsonl")
        shard = TrajectoryShard(folder / "trajectories" / "grader-0.jsonl")
        rng = np.random.default_rng(0)
        for step in range(1, STEPS + 1):
            groups = []
            for group in range(3):
                members = [sampled(rng, step, group, member) for member in range(4)]
                for member in members:
                    if member.spec.attempt:  # the attempt that was given up has other tokens
                        other = replace(member, spec=replace(member.spec, attempt=0), token_ids=member.token_ids + 1)
                        shard.append(to_line(other, actor_name="grader/0", graded_at_s=0.0))
                    shard.append(to_line(member, actor_name="grader/0", graded_at_s=0.0))
                older = max(0, step - 1) if step == 4 else 0  # over_age=mask
                groups.append(Group(members[0].spec.group_id, tuple(m.without_older(older) for m in members)))
            batch = Batch(tuple(groups))
            intake = take_in(
                batch.groups,
                recipe.advantage,
                penalties=recipe.penalties,
                version_steps=versions.steps,
                steps_done=step - 1,
            )
            report = bench.trainer.step(intake.sequences, recipe.learning_rate.at(step - 1))
            bench.progress.step = step
            entry = entry_of(batch, intake, step)
            log.append(replace(entry, loss=report.loss, grad_norm=report.grad_norm, num_updates=report.num_updates))
            versions.claim(step)
            if step in saves:
                await bench.save(step, step)
        shard.close()

    def make(saves: set[int], **settings: Any) -> Path:
        folder = tmp_path / "run"
        asyncio.run(train(folder, saves, settings))
        return folder

    return make


@pytest.fixture
def play_again(learner_of: Callable[..., Learner], tmp_path: Path) -> Callable[..., list[ReplayedStep]]:
    def go(folder: Path, step: int, *, from_model: bool = True, **settings: Any) -> list[ReplayedStep]:
        run = RecordedRun(folder, step, from_model=from_model)
        scratch = tmp_path / f"scratch-{len(list(tmp_path.iterdir()))}"
        run.link_into(scratch)
        done: list[ReplayedStep] = []
        last = asyncio.run(replay(run, learner_of(scratch, **settings).recipe(), done.append))
        assert done[-1] is last
        return done

    return go


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_steps_are_the_same_to_the_last_bit_and_the_run_folder_stays_as_it_is(record, play_again):
    folder = record({3})
    before = everything_in(folder)
    for step, begins in ((2, 1), (3, 1), (5, 4)):
        done = play_again(folder, step)
        assert [one.recorded.step for one in done] == list(range(begins, step + 1))
        assert all(one.same and one.difference == 0 for one in done)
        assert all(one.recorded.loss and one.recorded.grad_norm for one in done)
    assert everything_in(folder) == before
    entries = {entry.step: entry for entry in TrainedLog(folder / "trained.jsonl").steps()}
    assert (len(entries[1].session_ids), len(entries[1].left_out), len(entries[1].attempts)) == (11, 1, 3)
    assert (entries[5].num_tokens, entries[4].num_tokens) == (11 * 8, 11 * 6)


def test_an_advantage_with_a_memory_sees_the_rewards_of_before(record, play_again):
    settings = {"advantage": RunningMean(), "kl": None}
    folder = record({3}, **settings)
    assert play_again(folder, 5, advantage=RunningMean(), kl=None)[-1].same


def test_with_other_settings_it_is_another_step(record, play_again):
    folder = record({3})
    last = play_again(folder, 4, num_epochs=1)[-1]
    assert not last.same
    assert last.again.num_updates != last.recorded.num_updates
    assert last.difference > 1e-3


def test_what_is_gone_is_named_with_what_to_set(record, play_again, tmp_path):
    folder = record({3, 4})
    with pytest.raises(ValueError, match=r"has no step 9; it has steps 1 to 5"):
        play_again(folder, 9)
    with pytest.raises(ValueError, match=r"before step 3 \(there are those of steps 3, 4\).*checkpoint_every_steps"):
        play_again(folder, 3, from_model=False)
    (folder / "checkpoints" / "reference").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"reference is missing, the weights that learner.kl compares with"):
        play_again(folder, 5)


def test_records_that_are_not_those_of_the_step_are_refused(record, play_again):
    folder = record({3})
    shard = folder / "trajectories" / "grader-0.jsonl"
    lines = shard.read_text().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines]
    chosen = next(i for i, line in enumerate(whole) if line["session_id"] == "g0050-00")

    def change(**values: Any) -> None:
        changed = json.dumps(whole[chosen] | values, separators=(",", ":")) + "\n"
        shard.write_text("".join([*lines[:chosen], changed, *lines[chosen + 1 :]]))

    change(reward=None)
    with pytest.raises(ValueError, match=r"step 5 give 10 sessions with 80 trained tokens \(left out: .*11 with 88"):
        play_again(folder, 5)
    change(reward=whole[chosen]["reward"] + 0.5)
    assert not play_again(folder, 5)[-1].same
    change(session_id="g9999-00")
    with pytest.raises(ValueError, match=r"lacks 1 sessions .* e.g. g0050-00 \(attempt 1\)"):
        play_again(folder, 5)
    shard.write_text("".join(lines).replace('"token_ids":', '"tokens":'))
    with pytest.raises(ValueError, match=r"grader-0.jsonl:\d+ is damaged: KeyError: 'token_ids'"):
        play_again(folder, 5)


def test_a_record_gives_back_every_bit(tmp_path: Path) -> None:
    """Float32 log-probs of any size, what is not finite, empty and odd texts."""
    rng = np.random.default_rng(3)
    whole = sampled(rng, 1, 0, 0)
    odd = rng.integers(0, 1 << 32, 14, dtype=np.uint32).view(np.float32)
    odd[:3] = (np.nan, np.inf, -np.inf)
    whole = replace(whole, logprobs=odd, reward=0.1 + 0.2, rewards={"a": 1 / 3}, notes={"why": "ü\n"})
    shard = TrajectoryShard(tmp_path / "grader-0.jsonl")
    shard.append(to_line(whole, actor_name="grader/0", graded_at_s=0.0))
    shard.close()
    with (tmp_path / "grader-0.jsonl").open("a") as file:
        file.write('{"session_id":"g0010-00","grou')  # killed in mid-line
    back = read_trajectories(tmp_path, {"g0010-00": 0})["g0010-00"]
    for name in ("token_ids", "loss_mask", "versions"):
        assert np.array_equal(getattr(back, name), getattr(whole, name))
        assert getattr(back, name).dtype == getattr(whole, name).dtype
    finite = ~np.isnan(odd)
    assert back.logprobs.view(np.uint32)[finite].tolist() == odd.view(np.uint32)[finite].tolist()
    assert np.isnan(back.logprobs[~finite]).all()
    assert (back.reward, back.rewards, back.notes, back.turns) == (
        whole.reward,
        whole.rewards,
        whole.notes,
        whole.turns,
    )
    assert (back.messages, back.spec.sampling.temperature, back.spec.task.source) == (whole.messages, 0.7, "class0")
    assert read_trajectories(tmp_path, {"g0010-00": 1}) == {}
