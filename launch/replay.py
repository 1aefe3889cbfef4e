"""`headrace replay RUN --step N`: a recorded step again, offline, in this process. Called by cli.py.

Reads the run folder, wherever it lies now, and writes nothing into it. The learner's own configuration, threads and
environment are those of the run; the steps themselves are actors/learner/replay.py's.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.launch.building import build
from headrace.launch.checks import value_at
from headrace.launch.environ import child_environment, launcher_environment, set_for_this_process
from headrace.launch.problems import ConfigError
from headrace.launch.run_folder import read_config
from headrace.launch.topology import plan_topology, roles_of

if TYPE_CHECKING:
    from headrace.actors.learner.replay import RecordedRun, ReplayedStep

STAGES_BEFORE = ("learner.pretrain", "learner.sft")
NOT_NEEDED = ("pretrain", "sft", "probe", "update_probe")
"""What a step is not made of, and what may want data that is gone."""


def replay_step(folder: Path, step: int, *, tolerance: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Returns what is written as JSON: `same` to the last bit, and `within_tolerance`: the relative difference of loss
    and gradient norm (between machines, or numbers of threads, float32 sums are in another order). Raises ValueError
    where the folder has not enough, with what to set; ConfigError where its learner cannot be made any more."""
    config = moved_here(read_config(folder), folder)
    _give_the_learners_environment(config)
    from transformers.utils import logging as transformers_logging

    from headrace.actors.learner.actor import Learner
    from headrace.actors.learner.replay import RecordedRun, replay

    transformers_logging.disable_progress_bar()
    run = RecordedRun(folder, step, from_model=not any(value_at(config, key) for key in STAGES_BEFORE))
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as scratch:
        run.link_into(Path(scratch) / "checkpoints")
        learner = _make_learner(config, Path(scratch))
        assert isinstance(learner, Learner), f"learner._target_ must be a Learner, got {type(learner).__name__}"
        started = run.start.checkpoint.name if run.start.checkpoint else "the model folder"
        say(f"step {step} of {folder}, from {started}, steps {run.start.step + 1} to {step}")
        done: list[ReplayedStep] = []

        def told(replayed: ReplayedStep) -> None:
            done.append(replayed)
            if replayed.recorded.step < step:
                say(f"  step {replayed.recorded.step}: {_verdict(replayed, tolerance)}")

        asyncio.run(replay(run, learner.recipe(), told))
    for line in _table(done[-1], tolerance):
        say(line)
    return _as_json(run, done, tolerance)


def moved_here(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The run's configuration with every path of its old folder in this one."""
    before = str(value_at(config, "run.dir") or folder)

    def moved(node: Any) -> Any:
        if isinstance(node, Mapping):
            return {str(key): moved(value) for key, value in node.items()}
        if isinstance(node, list):
            return [moved(value) for value in node]
        if isinstance(node, str) and (node == before or node.startswith(before + "/")):
            return str(folder) + node[len(before) :]
        return node

    here: dict[str, Any] = moved(config)
    return here


def _give_the_learners_environment(config: Mapping[str, Any]) -> None:
    """Its threads and devices, before torch is imported: the order of float32 sums depends on the threads."""
    processes, _ = plan_topology(config.get("topology") or {}, roles_of(config))
    plan = next((process for process in processes if process.role == "learner"), None)
    if plan is None:
        raise ValueError("the run's topology has no learner; there is no step to replay")
    set_for_this_process(child_environment(launcher_environment(), plan, offline=True))


def _make_learner(config: Mapping[str, Any], scratch: Path) -> Any:
    settings = dict(config["learner"]) | {name: None for name in NOT_NEEDED if name in config["learner"]}
    settings |= {"checkpoints_dir": str(scratch / "checkpoints"), "trained_path": None}
    learner, problems = build(settings, "learner")
    if problems:
        raise ConfigError(problems)
    return learner


def _verdict(step: ReplayedStep, tolerance: float) -> str:
    if step.recorded.loss is None and step.again.loss is None:
        return "nothing was trained in it"
    if step.same:
        return "the same to the last bit"
    close = "within" if step.difference <= tolerance else "MORE THAN"
    return f"relative difference {step.difference:.3g}, {close} the tolerance {tolerance:g}"


def _table(step: ReplayedStep, tolerance: float) -> list[str]:
    import torch

    lines = [f"{'':<14}{'recorded':>24}{'again':>24}{'difference':>14}"]
    rows = [
        ("loss", step.recorded.loss, step.again.loss),
        ("gradient norm", step.recorded.grad_norm, step.again.grad_norm),
    ]
    for name, before, now in rows:
        apart = "–" if before is None or now is None else f"{now - before:.3g}"
        lines.append(f"{name:<14}{_number(before):>24}{_number(now):>24}{apart:>14}")
    if step.recorded.num_updates != step.again.num_updates:  # the learner was stopped in mid-step
        lines.append(f"of its {step.again.num_updates} updates, {step.recorded.num_updates} had been made")
    of = f"{len(step.recorded.session_ids)} sessions, {step.recorded.num_tokens} trained tokens"
    return [*lines, f"{_verdict(step, tolerance)} ({of}; torch {torch.__version__}, {torch.get_num_threads()} threads)"]


def _number(value: float | None) -> str:
    return "–" if value is None else repr(value)


def _as_json(run: RecordedRun, done: list[ReplayedStep], tolerance: float) -> dict[str, Any]:
    def of(step: ReplayedStep) -> dict[str, Any]:
        return {
            "step": step.recorded.step,
            "sessions": len(step.recorded.session_ids),
            "tokens": step.recorded.num_tokens,
            "loss": {"recorded": step.recorded.loss, "again": step.again.loss},
            "grad_norm": {"recorded": step.recorded.grad_norm, "again": step.again.grad_norm},
            "same": step.same,
            "difference": step.difference if math.isfinite(step.difference) else None,
        }

    last = done[-1]
    return {
        "run": str(run.folder),
        "checkpoint": run.start.checkpoint.name if run.start.checkpoint else None,
        **of(last),
        "within_tolerance": last.difference <= tolerance,
        "tolerance": tolerance,
        "steps": [of(step) for step in done],
    }
