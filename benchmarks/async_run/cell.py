"""One cell of the grid: a run of the real actors in virtual time, and its row.

    python -c "…run_cell(Cell(…))"       is what async_vs_sync.py calls, in a process of its own

The dispatcher, environments, graders, generators and parameter server are the system's, each a runtime of its own
under the in-process launcher; engine and learner are simulated.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from async_run.bounds import Machine
from async_run.lengths import Lengths
from headrace.launch.console import Console
from headrace.launch.inprocess import InProcessLauncher
from headrace.launch.job import Job
from headrace.launch.shared_memory import run_id
from headrace.launch.topology import plan_topology, roles_of

_PROMPT_ROOM = 32
_FOREVER_S = 1e7
_METRICS_S = 1e6
"""nobody reads them"""


@dataclass(frozen=True, slots=True)
class Cell:
    """`steps`: measured, after `warm_up` more; `engines` share the machine's slots. `settings`: further keywords of the
    dispatcher."""

    lengths: Lengths
    machine: Machine
    group_size: int
    batch_sessions: int
    max_lag: int
    in_flight: bool = True
    sync: bool = False
    steps: int = 40
    warm_up: int = 20
    engines: int = 2
    environments: int = 2
    settings: dict[str, Any] = field(default_factory=dict)


def run_cell(cell: Cell) -> dict[str, Any]:
    """What was measured. Raises RuntimeError where the run came to no good end."""
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="headrace-cell-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        _write_model(folder / "model", cell.lengths.max_tokens + _PROMPT_ROOM)
        config = _config(cell, folder)
        processes, problems = plan_topology(config["topology"], roles_of(config))
        assert not problems, problems
        launcher = InProcessLauncher(clock="virtual", max_wall_s=_FOREVER_S)
        outcome = asyncio.run(launcher.launch(Job(folder, run_id(), config, processes, Console(quiet=True))))
        if outcome.ending != "finished":
            raise RuntimeError(f"{cell}: the run ended as {outcome.ending}: {outcome.reason}")
        return _measure(cell, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_model(folder: Path, context_tokens: int) -> None:
    """A tokenizer of a few words: what an environment reads when it starts."""
    folder.mkdir()
    words = {"?": 0, "say": 1, "it": 2, "word": 3, "no": 4, ".": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 5, "max_position_embeddings": context_tokens}))


def _config(cell: Cell, folder: Path) -> dict[str, Any]:
    lengths, machine = cell.lengths, cell.machine
    assert machine.slots % cell.engines == 0, machine
    assert machine.slots % cell.environments == 0, machine
    context_tokens = lengths.max_tokens + _PROMPT_ROOM
    roles: dict[str, dict[str, Any]] = {
        "parameter_server": {
            "_target_": "headrace.actors.parameter_server.actor.ParameterServer",
            "commit_timeout_s": _FOREVER_S,
        },
        "dispatcher": {
            "_target_": "headrace.actors.dispatcher.actor.Dispatcher",
            "tasks": {"_target_": "async_run.tasks.EndlessTasks"},
            "group_size": cell.group_size,
            "batch_sessions": cell.batch_sessions,
            "max_lag_versions": cell.max_lag,
            "mode": "sync" if cell.sync else "async",
            "max_tokens": lengths.max_tokens,
            "ledger_path": str(folder / "ledger.sqlite"),
            "session_timeout_s": _FOREVER_S,
            "metrics_every_s": _METRICS_S,
            "stall_log_s": _FOREVER_S,
            **cell.settings,
        },
        "grader": {
            "_target_": "headrace.actors.grader.actor.Grader",
            "grading": {"_target_": "async_run.tasks.EveryOther"},
            "trajectories_dir": str(folder / "trajectories"),
            "metrics_every_s": _METRICS_S,
        },
        "generator": {
            "_target_": "headrace.actors.generator.actor.Generator",
            "metrics_period_s": _METRICS_S,
            "engine": {
                "_target_": "async_run.engine.SlotEngine",
                "lengths": {
                    "sigma": lengths.sigma,
                    "mean_tokens": lengths.mean_tokens,
                    "max_tokens": lengths.max_tokens,
                },
                "slots": machine.slots // cell.engines,
                "token_s": machine.token_s,
                "context_tokens": context_tokens,
                "in_flight": cell.in_flight,
                "record": str(folder / "busy"),
            },
        },
        "environment": {
            "_target_": "headrace.actors.environment.EnvironmentActor",
            "environment": {"_target_": "headrace.actors.environment.single_turn.SingleTurn", "_partial_": True},
            "model_path": str(folder / "model"),
            "slots": machine.slots // cell.environments,
            "context_tokens": context_tokens,
            "generate_timeout_s": _FOREVER_S,
            "session_timeout_s": _FOREVER_S,
            "metrics_every_s": _METRICS_S,
        },
        "learner": {
            "_target_": "async_run.learner.PacedLearner",
            "tokens_per_s": machine.training,
            "steps": cell.warm_up + cell.steps,
            "sync": cell.sync,
            "versions_file": str(folder / "versions.jsonl"),
            "record": str(folder / "steps.json"),
        },
    }
    counts = {"generator": cell.engines, "environment": cell.environments}
    actors = {role: {"count": counts.get(role, 1)} for role in roles}
    return {"topology": {"nodes": {"n": {"actors": actors}}}, **roles}


def _measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Over the steps after the warm-up, from the end of one step to the end of another."""
    steps = json.loads((folder / "steps.json").read_text())
    from_s, until_s = steps[cell.warm_up - 1]["ended_s"], steps[-1]["ended_s"]
    measured = steps[cell.warm_up :]
    span_s = until_s - from_s
    busy_s = sum(_busy_s(json.loads(path.read_text()), from_s, until_s) for path in (folder / "busy").iterdir())
    return {
        "tokens_per_s": sum(step["tokens"] for step in measured) / span_s,
        "learner_idle": sum(step["waited_s"] for step in measured) / span_s,
        "generator_idle": 1 - busy_s / (cell.machine.slots * span_s),
        "step_s": span_s / cell.steps,
        **_ledger_figures(folder / "ledger.sqlite", cell.warm_up),
    }


def _busy_s(changes: list[tuple[float, int]], from_s: float, until_s: float) -> float:
    """Slot-seconds of one engine between two times."""
    times = np.asarray([time_s for time_s, _ in changes])
    slots = np.asarray([busy for _, busy in changes])
    begins = np.clip(times, from_s, until_s)
    ends = np.append(begins[1:], until_s)
    return float(((ends - begins) * slots).sum())


def _ledger_figures(path: Path, warm_up: int) -> dict[str, Any]:
    """Lags of what was trained after the warm-up: of a session (its oldest token) and of a token. Drops by reason, and
    the lengths of what was kept and of all that began."""
    database = sqlite3.connect(path)
    trained = list(
        database.execute("select lag, token_lags, tokens from sessions where state = 'trained' and step > ?", [warm_up])
    )
    dropped = dict(
        database.execute(
            "select reason, count(*) from sessions where state = 'dropped' and reason != 'cancelled' group by 1"
        )
    )
    database.close()
    lags = np.asarray([lag for lag, _, _ in trained])
    by_token = [(int(lag), count) for _, counts, _ in trained for lag, count in json.loads(counts).items()]
    tokens = sum(count for _, count in by_token)
    return {
        "lag_mean": float(lags.mean()),
        "lag_max": int(lags.max()),
        "token_lag_mean": sum(lag * count for lag, count in by_token) / tokens,
        "dropped": dropped,
    }
