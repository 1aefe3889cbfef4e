"""A tiny Llama made from a seed, and makers of trajectories and sequences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.actors.learner.policy import Policy
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.session import Group, Sampling, SessionSpec, Task, Trajectory
from headrace.launch.models import ScratchLlama

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
"""The slow twins lie there, in `twins`."""

MakeSequence = Callable[..., TrainSequence]
MakeTrajectory = Callable[..., Trajectory]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = ScratchLlama(
        hidden_size=32, num_layers=2, num_heads=2, head_dim=16, intermediate_size=64, max_positions=128, init_std=0.1
    )
    return source.prepare(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture
def policy(model_folder: Path) -> Policy:
    return Policy.load(model_folder)


@pytest.fixture
def other_policy(model_folder: Path) -> Policy:
    """Another set of weights than `policy`; nothing trains it."""
    policy = Policy.load(model_folder)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return policy


@pytest.fixture(scope="session")
def make_sequence() -> MakeSequence:
    def make(seed: int, length: int = 10, *, prompt: int = 3, temperature: float = 1.0) -> TrainSequence:
        rng = np.random.default_rng(seed)
        mask = np.arange(length) >= prompt
        if length > prompt + 4:
            mask[prompt + 2] = False  # tool output in the middle
        return TrainSequence(
            token_ids=rng.integers(3, 90, length).astype(np.int32),
            loss_mask=mask,
            logprobs=np.where(mask, rng.normal(-4.5, 0.7, length), 0.0).astype(np.float32),
            versions=np.where(mask, 1, -1).astype(np.int32),
            advantage=float(rng.normal()),
            temperature=temperature,
        )

    return make


@pytest.fixture(scope="session")
def make_trajectory() -> MakeTrajectory:
    def make(
        reward: float | None,
        *,
        session_id: str = "s",
        group_id: str = "g",
        prompt: tuple[int, ...] = (5, 6, 7),
        sampled: tuple[int, ...] = (8, 9),
        logprobs: tuple[float, ...] | None = None,
        version: int = 1,
        sampling: Sampling | None = None,
    ) -> Trajectory:
        num = len(prompt) + len(sampled)
        spec = SessionSpec(
            session_id=session_id,
            group_id=group_id,
            member=0,
            purpose="train",
            task=Task(task_id="t", source="test", prompt=()),
            sampling=sampling or Sampling(),
        )
        mask = np.arange(num) >= len(prompt)
        lp = np.zeros(num, dtype=np.float32)
        lp[mask] = logprobs if logprobs is not None else [-1.0] * len(sampled)
        return Trajectory(
            spec=spec,
            token_ids=np.array([*prompt, *sampled], dtype=np.int32),
            logprobs=lp,
            loss_mask=mask,
            versions=np.where(mask, version, -1).astype(np.int32),
            turns=(),
            messages=(),
            ending="done",
            reward=reward,
        )

    return make


@pytest.fixture(scope="session")
def make_group(make_trajectory: MakeTrajectory) -> Callable[..., Group]:
    def make(rewards: list[float | None], group_id: str = "g", **kwargs: object) -> Group:
        return Group(
            group_id,
            tuple(
                make_trajectory(r, session_id=f"{group_id}-{i}", group_id=group_id, **kwargs)
                for i, r in enumerate(rewards)
            ),
        )

    return make
