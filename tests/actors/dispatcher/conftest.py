"""Shared by the dispatcher's tests: endless small tasks, trajectories with chosen versions and rewards, settings."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.session import ChatMessage, SessionSpec, Task, Trajectory, Turn


class CountingTasks:
    """Task i asks for i. `poison` names indices whose sessions the scripted environments never finish."""

    def task(self, index: int) -> Task:
        return Task(f"t{index}", "counting", (ChatMessage("user", f"say {index}"),), str(index))

    def held_out(self, num: int) -> list[Task]:
        return [Task(f"h{i}", "counting", (ChatMessage("user", f"held out {i}"),), str(i)) for i in range(num)]

    def fingerprint(self) -> str:
        return "counting"


def trajectory_of(spec: SessionSpec, versions: list[int], reward: float | None) -> Trajectory:
    """A two-token prompt and one sampled token for each of `versions`."""
    num = len(versions)
    return Trajectory(
        spec=spec,
        token_ids=np.arange(2 + num, dtype=np.int32) + spec.member,
        logprobs=np.array([0.0, 0.0] + [-0.5] * num, dtype=np.float32),
        loss_mask=np.array([False, False] + [True] * num),
        versions=np.array([-1, -1, *versions], dtype=np.int32),
        turns=(Turn(2, 2 + num, "stop"),),
        messages=(),
        ending="done",
        reward=reward,
    )


@pytest.fixture
def tasks() -> CountingTasks:
    return CountingTasks()


@pytest.fixture
def make_trajectory() -> Callable[[SessionSpec, list[int], float | None], Trajectory]:
    return trajectory_of


@pytest.fixture
def make_settings() -> Callable[..., TrainingSettings]:
    def make(**changes: Any) -> TrainingSettings:
        given: dict[str, Any] = {"group_size": 2, "batch_sessions": 4, "max_lag_versions": 1, "seed": 7} | changes
        return TrainingSettings(**given)

    return make


@pytest.fixture(scope="session")
def peers() -> ModuleType:
    """The module scripted_peers.py beside this file; loaded once, since its messages' handlers register by class."""
    path = Path(__file__).with_name("scripted_peers.py")
    spec = importlib.util.spec_from_file_location("scripted_peers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripted_peers"] = module
    spec.loader.exec_module(module)
    return module
