"""Picks the sessions that a reader wants to see: the best and the worst of the last training steps. Reads the shards
once."""

from __future__ import annotations

import heapq
from typing import Any

from headrace.launch.report.run_files import RunFiles

_TEXT_CHARACTERS = 1200


def example_sessions(run: RunFiles, *, num: int = 3) -> dict[str, list[dict[str, Any]]]:
    """`best` and `worst` by reward among training sessions, the newest versions first among equals: each with its
    messages, reward, components, versions and tokens. Texts are cut for the page; the shard has them whole."""
    best: list[tuple[tuple[float, int, int], dict[str, Any]]] = []
    worst: list[tuple[tuple[float, int, int], dict[str, Any]]] = []
    for number, record in enumerate(run.trajectories()):
        reward = record.get("reward")
        if record.get("purpose") != "train" or not isinstance(reward, int | float) or not _can_be_shown(record):
            continue
        newest = max(record.get("versions") or [-1])
        _keep(best, ((float(reward), newest, number), record), num)
        _keep(worst, ((-float(reward), newest, number), record), num)
    return {
        "best": [_shown(record) for _, record in sorted(best, key=lambda item: item[0], reverse=True)],
        "worst": [_shown(record) for _, record in sorted(worst, key=lambda item: item[0], reverse=True)],
    }


def _can_be_shown(record: dict[str, Any]) -> bool:
    """Whether the parts that are looked into are what a grader writes: somebody may have edited the shard."""
    numbers = [record.get("versions") or [], record.get("loss_mask") or []]
    messages = record.get("messages") or []
    return (
        all(isinstance(row, list) and all(isinstance(item, int) for item in row) for row in numbers)
        and isinstance(messages, list)
        and all(isinstance(message, dict) for message in messages)
    )


def _keep(heap: list[tuple[tuple[float, int, int], dict[str, Any]]], item: Any, num: int) -> None:
    if len(heap) < num:
        heapq.heappush(heap, item)
    elif item[0] > heap[0][0]:
        heapq.heapreplace(heap, item)


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    versions = [version for version in record.get("versions") or [] if version >= 0]
    return {
        "session_id": record.get("session_id"),
        "task_id": record.get("task_id"),
        "reward": record.get("reward"),
        "rewards": record.get("rewards") or {},
        "gold": _cut(record.get("gold")),
        "ending": record.get("ending"),
        "tokens": sum(record.get("loss_mask") or []),
        "versions": [min(versions), max(versions)] if versions else [],
        "messages": [
            {"role": message.get("role"), "content": _cut(message.get("content"))}
            for message in record.get("messages") or []
        ],
    }


def _cut(text: object) -> str:
    written = "" if text is None else str(text)
    if len(written) <= _TEXT_CHARACTERS:
        return written
    return f"{written[:_TEXT_CHARACTERS]} … ({len(written)} characters)"
