"""Trajectories out of the graders' records of a run (RUN/trajectories/*.jsonl): the same arrays to the last bit. Reads,
never writes; the writer is actors/grader/trajectory_shard.py.

A record has token ids, masks and versions as integers, log-probs as the shortest decimals that give the same float32,
and rewards as those of the same float64; what JSON has no form for stands as the texts "nan", "inf" and "-inf". Of the
task it keeps what identifies it; the prompt is the first of the messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.actors.session.task import ChatMessage, Sampling, SessionSpec, Task, ToolCall
from headrace.actors.session.trajectory import Trajectory, Turn

_BEGIN = re.compile(rb'\{"session_id":"([^"\\]*)"')
"""of a line: the id without reading the rest"""


def read_trajectories(folder: Path, attempts: Mapping[str, int]) -> dict[str, Trajectory]:
    """session id → its trajectory, of the attempt that is asked for; what is not recorded is absent. One pass over
    `folder`/*.jsonl, that keeps nothing else. Raises ValueError naming the line that is damaged."""
    found: dict[str, Trajectory] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in _whole_lines(path):
            begin = _BEGIN.match(line)
            if begin is not None and begin[1].decode() not in attempts:
                continue
            try:
                record = json.loads(line)
                session_id = record["session_id"]
                if attempts.get(session_id) == record["attempt"]:
                    found[session_id] = trajectory_of(record)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number} is damaged: {type(error).__name__}: {error}") from error
    return found


def trajectory_of(record: Mapping[str, Any]) -> Trajectory:
    """Raises KeyError, TypeError or ValueError where the record is none of a grader's."""
    task = Task(record["task_id"], record["source"], prompt=(), answer=record["gold"])
    spec = SessionSpec(
        session_id=record["session_id"],
        group_id=record["group_id"],
        member=record["member"],
        purpose=record["purpose"],
        task=task,
        sampling=Sampling(temperature=float(record["temperature"])),
        attempt=record["attempt"],
    )
    reward = record["reward"]
    return Trajectory(
        spec=spec,
        token_ids=np.array(record["token_ids"], dtype=np.int32),
        logprobs=np.array([float(value) for value in record["logprobs"]], dtype=np.float32),
        loss_mask=np.array(record["loss_mask"], dtype=np.bool_),
        versions=np.array(record["versions"], dtype=np.int32),
        turns=tuple(Turn(int(start), int(end), reason) for start, end, reason in record["turns"]),
        messages=tuple(_message(message) for message in record["messages"]),
        ending=record["ending"],
        reward=None if reward is None else float(reward),
        rewards={name: float(value) for name, value in record["rewards"].items()},
        timings_s=dict(record["timings_s"]),
        notes=dict(record["notes"]),
    )


def _message(record: Mapping[str, Any]) -> ChatMessage:
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in record.get("tool_calls", ()))
    return ChatMessage(record["role"], record["content"], calls)


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """A grader that was killed leaves half a line at the end."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):
                yield number, line
