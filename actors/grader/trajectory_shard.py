"""The grader's record of every session: one JSON line each, in a file of its own in the run folder.

A line is with the operating system before anybody hears of its reward: whatever is trained stands here, also where the
grader is killed. One that was killed while it wrote leaves half a line; its successor cuts that off. Readers use
`json.loads`; numbers that JSON has no form for are the texts "nan", "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np

from headrace.actors.session import ChatMessage, Trajectory
from headrace.transport.durable import cut_half_line


def shard_path(trajectories_dir: Path, actor_name: str) -> Path:
    """`grader/0` writes `grader-0.jsonl`."""
    return trajectories_dir / f"{actor_name.replace('/', '-')}.jsonl"


def to_line(trajectory: Trajectory, *, actor_name: str, graded_at_s: float) -> str:
    """One line of JSON with a newline. `graded_at_s`: Unix time."""
    record = _record(trajectory, actor_name, graded_at_s)
    try:
        return json.dumps(record, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
    except ValueError:
        return json.dumps(_finite(record), allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"


def _record(trajectory: Trajectory, actor_name: str, graded_at_s: float) -> dict[str, object]:
    spec, task = trajectory.spec, trajectory.spec.task
    return {
        "session_id": spec.session_id,
        "group_id": spec.group_id,
        "member": spec.member,
        "attempt": spec.attempt,
        "purpose": spec.purpose,
        "task_id": task.task_id,
        "source": task.source,
        "gold": task.answer,
        "grader": actor_name,
        "graded_at_s": graded_at_s,
        "reward": trajectory.reward,
        "rewards": trajectory.rewards,
        "ending": trajectory.ending,
        "temperature": spec.sampling.temperature,
        "messages": [_message(message) for message in trajectory.messages],
        "token_ids": trajectory.token_ids.tolist(),
        "logprobs": trajectory.logprobs.tolist(),
        "loss_mask": trajectory.loss_mask.astype(np.int8).tolist(),
        "versions": trajectory.versions.tolist(),
        "turns": [[turn.start, turn.end, turn.finish_reason] for turn in trajectory.turns],
        "timings_s": trajectory.timings_s,
        "notes": trajectory.notes,
    }


def _message(message: ChatMessage) -> dict[str, object]:
    written: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        written["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return written


def _finite(value: object) -> object:
    """The same values, with texts in the place of numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


class TrajectoryShard:
    """Appends lines to one file. Not thread-safe: used from the event loop; a line takes tens of microseconds."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        cut_half_line(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, line: str) -> None:
        """Returns when the operating system has all of it."""
        pending = memoryview(line.encode("utf-8", errors="backslashreplace"))  # half a surrogate pair has no UTF-8 form
        while pending:
            pending = pending[os.write(self._file, pending) :]

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
