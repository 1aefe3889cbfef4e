"""Which of a run's trajectories become documents, and that their tokens are those that were sampled."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.actors.grader.trajectory_shard import TrajectoryShard, shard_path, to_line
from headrace.actors.learner.documents import TokenDocument, TrajectoryDocuments
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task, Trajectory, Turn


def trajectory(
    session_id: str,
    tokens: list[int],
    reward: float | None,
    *,
    task: str = "t0",
    ending: Any = "done",
    purpose: Any = "train",
    mask: list[bool] | None = None,
) -> Trajectory:
    sampled = np.array(mask if mask is not None else [False, *[True] * (len(tokens) - 1)])
    spec = SessionSpec(session_id, "g0", 0, purpose, Task(task, "x", (ChatMessage("user", "?"),)), Sampling())
    return Trajectory(
        spec=spec,
        token_ids=np.array(tokens, dtype=np.int32),
        logprobs=np.where(sampled, -0.5, 0.0).astype(np.float32),
        loss_mask=sampled,
        versions=np.where(sampled, 1, -1).astype(np.int32),
        turns=(Turn(1, len(tokens), "stop"),),
        messages=(ChatMessage("assistant", "\ud800 half a pair"),),
        ending=ending,
        reward=reward,
    )


def write(run: Path, *trajectories: Trajectory, grader: str = "grader/0") -> None:
    shard = TrajectoryShard(shard_path(run / "trajectories", grader))
    for one in trajectories:
        shard.append(to_line(one, actor_name=grader, graded_at_s=0.0))
    shard.close()


def chosen(run: Path, **settings: Any) -> list[list[int]]:
    source = TrajectoryDocuments(run=str(run), held_out_fraction=0.0, shuffle_buffer=1, **settings)
    num = len(list(source.records.read("trajectories")))
    documents = list(itertools.islice(source.documents(0), num))
    assert all(isinstance(document, TokenDocument) for document in documents)
    return [document.token_ids.tolist() for document in documents if isinstance(document, TokenDocument)]


def test_tokens_and_marks_are_those_of_the_record(tmp_path: Path) -> None:
    """Two turns with a tool's output between them; what the shard's writer wrote is what comes."""
    mask = [False, True, True, False, False, True]
    write(tmp_path, trajectory("s0", [5, 6, 7, 8, 9, 10], 1.0, mask=mask))
    document = next(TrajectoryDocuments(run=str(tmp_path), held_out_fraction=0.0).documents(0))
    assert document.token_ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert document.loss_mask.tolist() == mask


def test_reward_ending_and_purpose(tmp_path: Path) -> None:
    write(
        tmp_path,
        trajectory("s0", [1, 0], 1.0),
        trajectory("s1", [1, 1], 0.99),
        trajectory("s2", [1, 2], None),
        trajectory("s3", [1, 3], float("nan")),
        trajectory("s4", [1, 4], float("inf")),
        trajectory("s5", [1, 5], 1.0, ending="truncated"),
        trajectory("s6", [1, 6], 1.0, purpose="eval"),
        trajectory("s7", [1, 7], 1.0, mask=[False, False]),
        trajectory("s8", [1, 8], 2.0),
    )
    assert chosen(tmp_path) == [[1, 0], [1, 8]]
    assert chosen(tmp_path, min_reward=0.5) == [[1, 0], [1, 1], [1, 8]]
    assert chosen(tmp_path, endings=("done", "truncated"), purposes=("train", "eval")) == [
        [1, 0], [1, 5], [1, 6], [1, 8],
    ]  # fmt: skip


def test_of_a_task_the_best_few_and_of_equal_ones_one(tmp_path: Path) -> None:
    write(
        tmp_path,
        trajectory("s0", [1, 0], 1.0),
        trajectory("s1", [1, 0], 1.0),  # sampled again
        trajectory("s2", [1, 2], 1.0),
        trajectory("s3", [1, 3], 3.0),
        trajectory("s5", [1, 5], 1.0, task="t1"),
    )
    write(tmp_path, trajectory("s3", [1, 3], 3.0), trajectory("s4", [1, 4], 2.0), grader="grader/1")  # delivered twice
    assert chosen(tmp_path, max_per_task=None) == [[1, 0], [1, 2], [1, 3], [1, 4], [1, 5]]
    assert chosen(tmp_path, max_per_task=2) == [[1, 3], [1, 4], [1, 5]]
    assert chosen(tmp_path, max_per_task=3) == [[1, 0], [1, 3], [1, 4], [1, 5]]


def test_a_task_is_held_out_with_all_its_sessions(tmp_path: Path) -> None:
    write(tmp_path, *(trajectory(f"s{n:03d}", [1, n], 1.0, task=f"t{n % 20}") for n in range(100)))
    source = TrajectoryDocuments(run=str(tmp_path), max_per_task=None, held_out_fraction=0.3)
    held_out = {int(document.token_ids[1]) % 20 for document in source.held_out()}  # type: ignore[union-attr]
    num = 100 - 5 * len(held_out)
    trained = {int(d.token_ids[1]) % 20 for d in itertools.islice(source.documents(0), num)}  # type: ignore[union-attr]
    assert held_out
    assert trained == set(range(20)) - held_out


def test_half_a_line_of_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, trajectory("s0", [1, 0], 1.0))
    with shard_path(tmp_path / "trajectories", "grader/0").open("a") as file:
        file.write('{"session_id": "s1", "rew')
    assert chosen(tmp_path) == [[1, 0]]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run must be the folder of a run"):
        next(TrajectoryDocuments(run=str(tmp_path)).documents(0))
    write(tmp_path, trajectory("s0", [1, 0], 0.0))
    with pytest.raises(ValueError, match=r"holds no trajectory with a reward >= 1\.0"):
        next(TrajectoryDocuments(run=str(tmp_path)).documents(0))
    with pytest.raises(ValueError, match="max_per_task must be >= 1 or null"):
        TrajectoryDocuments(run=str(tmp_path), max_per_task=0)
    with pytest.raises(ValueError, match="purposes must be train, eval or both"):
        TrajectoryDocuments(run=str(tmp_path), purposes=("test",))
