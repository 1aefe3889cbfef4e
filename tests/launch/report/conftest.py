"""A small run folder with chosen figures, as the actors and the launcher write it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.actors.dispatcher.journal import Journal


def _jsonl(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _metrics() -> list[dict[str, Any]]:
    def record(time_s: float, stream: str, step_name: str, step: float, /, **values: float) -> dict[str, Any]:
        named = {name.replace("__", "/"): value for name, value in values.items()}
        return {"time_s": time_s, "stream": stream, "step_name": step_name, "step": step, "values": named}

    lines = [
        record(1.0 + i, "pretrain", "step", 10 * i, loss=3.0 / (1 + i), held_out_loss=3.2 / (1 + i)) for i in range(5)
    ]
    lines.append(record(8.0, "logprob_probe", "version", 1, mean=2e-5, max=1e-4, kl=1e-9, tokens=640))
    lines.append(record(9.0, "update_probe", "version", 1, mean=2e-6, max=1e-5, bound=1e-4, alarms_total=0))
    lines.append(record(9.0, "update_probe", "version", 2, mean=2e-4, max=1e-3, bound=1e-4, alarms_total=1))
    lines.append(record(9.0, "dispatcher", "wall_s", 9, version=0, issued=0))
    lines.append(record(10.0, "dispatcher", "wall_s", 10, version=1, issued=128, running=128))
    for step in range(1, 101):
        time_s = 10.0 + 0.5 * step
        lines.append(
            record(
                time_s,
                "train",
                "step",
                step,
                reward__mean=0.3 + 0.005 * step,
                sessions=16,
                ess__token=0.95,
                ess__sequence=0.7,
                logprob_gap__same_version_mean=1e-5,
                logprob_gap__same_version_tokens=100,
                logprob_gap__older_mean=1e-3,
                logprob_gap__older_tokens=60,
                publications__failed=0,
            )
        )
        if step % 2 == 0:
            busy = float(step % 4 == 0)
            lines.append(
                record(
                    time_s + 0.1,
                    "weights",
                    "version",
                    1 + step // 2,
                    pause_s=0.001 * step,
                    load_s=0.0005 * step,
                    requests_running=3 * busy,
                )
            )
        if step % 10 == 0:
            lines.append(
                record(
                    time_s,
                    "dispatcher",
                    "wall_s",
                    time_s,
                    version=step // 2,
                    issued=16 * step + 160,
                    running=60,
                    grading=8,
                    ready=40 + step % 30,
                    training=16,
                )
            )
    lines.append(record(61.0, "weights", "version", 40, failed=1, evictions_total=1))
    lines.append(record(61.0, "weights/relay-0", "version", 40, received_bytes=1e6, nbytes=1e6))
    lines.append(record(61.0, "weights/relay-0", "version", 41, received_bytes=2e5, nbytes=1e6))
    lines.append(record(61.0, "weights/relay-1", "version", 41, received_bytes=2e5, nbytes=1e6))
    for version, step, mean in ((1, 0, 0.29), (26, 50, 0.6), (51, 100, 0.81)):
        lines.append(
            record(
                12.0 + step / 2,
                "eval",
                "version",
                version,
                step=step,
                prompts=64,
                missing=0,
                off_version=0,
                wall_s=2.5,
                reward=mean,
                reward_n=512,
                reward_stderr=0.03,
                greedy=mean + 0.1,
                greedy_n=64,
                greedy_stderr=0.04,
                pass_at_8=min(1.0, mean + 0.15),
                pass_at_8_n=64,
                pass_at_8_stderr=0.02,
            )
        )
    return lines


Session = tuple[str, str, str | None, int | None, int | None, str | None, float | None, int | None]
"""(session_id, state, reason, step, lag, token_lags, reward, tokens)"""


def _ledger() -> list[Session]:
    trained: list[Session] = [
        (
            f"g{i:07d}-00", "trained", None, 1 + i // 16, i % 4,
            json.dumps({str(i % 4): 6, "0": 4} if i % 4 else {"0": 10}), float(i % 2), 10,
        )
        for i in range(1600)
    ]  # fmt: skip
    same: list[Session] = [(f"z{i}", "dropped", "zero_variance", None, None, None, 1.0, 5) for i in range(400)]
    rest: list[Session] = [(f"c{i}", "dropped", "cancelled", None, None, None, None, None) for i in range(60)]
    return trained + same + rest


def write_ledger(path: Path, sessions: list[Session]) -> None:
    """Adds sessions, and counts them as issued, to what the dispatcher's own journal makes at `path`."""
    Journal(str(path)).close()
    with closing(sqlite3.connect(path)) as database, database:
        names = "session_id, state, reason, step, lag, token_lags, reward, tokens"
        others = "group_id, member, task_index, task_id, attempt, version_at_start"
        database.executemany(
            f"insert into sessions ({names}, {others}) values (?, ?, ?, ?, ?, ?, ?, ?, 'g', 0, 0, 't', 0, 1)", sessions
        )
        database.execute("insert or replace into facts select 'issued', count(*) from sessions")


def _trained(sessions: list[Session]) -> list[dict[str, Any]]:
    """The learner's own record of the same."""
    steps: dict[int, list[str]] = {}
    for session_id, state, _, step, *_ in sessions:
        if state == "trained" and step is not None:
            steps.setdefault(step, []).append(session_id)
    return [{"step": step, "session_ids": ids} for step, ids in steps.items()]


@pytest.fixture
def add_sessions(run_folder: Path) -> Callable[[list[Session]], None]:
    """More sessions in the ledger of `run_folder`."""
    return lambda sessions: write_ledger(run_folder / "ledger.sqlite", sessions)


def _trajectories() -> list[dict[str, Any]]:
    return [
        {
            "session_id": f"g{i}-00",
            "purpose": "train",
            "task_id": f"t{i}",
            "reward": float(i % 2),
            "rewards": {"task": float(i % 2)},
            "ending": "done",
            "gold": "[13,32,77]",
            "loss_mask": [0, 1, 1],
            "versions": [-1, i, i],
            "messages": [{"role": "user", "content": f"sort <{i}>"}, {"role": "assistant", "content": "[13,32,77]"}],
        }
        for i in range(20)
    ]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "120000-quickstart"
    folder.mkdir()
    _jsonl(folder / "metrics.jsonl", _metrics())
    write_ledger(folder / "ledger.sqlite", _ledger())
    _jsonl(folder / "trained.jsonl", _trained(_ledger()))
    _jsonl(folder / "trajectories" / "grader-0.jsonl", _trajectories())
    (folder / "config.yaml").write_text(yaml.safe_dump({"mode": "async", "seed": 3}))
    shares = {
        "learner": {"busy": 0.82, "blocked": {"dispatcher": 0.1}, "idle": 0.08, "wall_s": 60.0},
        "generator": {"busy": 0.9, "blocked": {}, "idle": 0.1, "wall_s": 60.0},
        "environment": {"busy": 0.07, "blocked": {"generator": 0.7, "grader": 0.03}, "idle": 0.2, "wall_s": 60.0},
        "dispatcher": {"busy": 0.2, "blocked": {}, "idle": 0.8, "wall_s": 60.0},
    }
    (folder / "activity.json").write_text(json.dumps({"roles": shares, "actors": {}}))
    provenance = {
        "seed": 3,
        "git_commit": "0123456789abcdef",
        "git_dirty": True,
        "lock_hash": "aa",
        "data_hash": "bb",
        "packages": {"torch": "2.13"},
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "outcome.json").write_text(json.dumps({"ending": "finished", "reason": "done", "wall_s": 75.5}))
    return folder
