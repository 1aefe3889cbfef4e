"""For what one actor waits and where its tasks stand: the answer to `WaitQuery`. Bounded, however much goes on in the
actor. Called by its runtime, which may be asked at any time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from headrace.transport.activity import Activity
from headrace.transport.cell import ActorCell
from headrace.transport.stacks import sleeps, task_stack
from headrace.transport.system import PeerWait, TaskReport, WaitReport

MAX_WAITS = 32
MAX_TASKS = 12


def wait_report(cell: ActorCell, now_s: float, takes: Callable[[str], bool]) -> WaitReport:
    """`takes(name)`: whether that actor has room for a message of this process."""
    waiting = cell.mailbox.oldest
    working: dict[str, float] = {}
    for label, since_s in cell.activity.work():
        working.setdefault(label, now_s - since_s)
    return WaitReport(
        name=cell.name,
        incarnation=cell.incarnation,
        pid=os.getpid(),
        waits=_waits(cell.activity, now_s, takes),
        tasks=_tasks(cell, now_s),
        working=working,
        mailbox_waiting=cell.mailbox.num_waiting,
        oldest_waiting_s=0.0 if waiting is None else now_s - waiting.since_s,
    )


def _waits(activity: Activity, now_s: float, takes: Callable[[str], bool]) -> tuple[PeerWait, ...]:
    groups: dict[tuple[str, str], list[float]] = {}
    for wait in activity.waits():
        groups.setdefault((wait.peer, wait.what), []).append(wait.since_s)
    return tuple(
        PeerWait(peer, what, len(since), now_s - since[0], no_credit=not takes(peer))
        for (peer, what), since in list(groups.items())[:MAX_WAITS]
    )


def _tasks(cell: ActorCell, now_s: float) -> tuple[TaskReport, ...]:
    """Handlers, the oldest first, then the tasks beside them; those that only sleep until their time are left out."""
    found: dict[tuple[str, ...], TaskReport] = {}
    for delivery, task in cell.handling():
        _add(found, task, type(delivery.message).__qualname__, now_s - delivery.since_s)
    for task in cell.background_tasks():
        if not sleeps(task):
            _add(found, task, "", None)
    return tuple(found.values())[:MAX_TASKS]


def _add(found: dict[tuple[str, ...], TaskReport], task: asyncio.Task[Any], message: str, for_s: float | None) -> None:
    stack = task_stack(task)
    same = found.get(stack)
    if same is None:
        found[stack] = TaskReport(task.get_name(), message, 1, for_s, stack)
    else:
        found[stack] = TaskReport(same.label, same.message, same.count + 1, same.for_s, stack)
