"""What an actor's runtime says of it, asked at any time: where its time went, for what it waits, where its tasks
stand. Bounded, however much goes on in the actor.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from headrace.transport.activity import Activity
from headrace.transport.cell import ActorCell
from headrace.transport.stacks import sleeps, task_stack
from headrace.transport.system import ActivitySnapshot, PeerWait, TaskReport, WaitReport

MAX_WAITS = 32
MAX_TASKS = 12


def activity_snapshot(cell: ActorCell) -> ActivitySnapshot:
    """The answer to `ActivityQuery`."""
    totals = cell.activity.totals()
    counters = cell.mailbox.counters
    mailbox = {
        "received": counters.received, "handled": counters.handled, "dropped": counters.dropped,
        "refused": counters.refused, "cancelled": counters.cancelled, "peak": counters.peak,
        "waiting": cell.mailbox.num_waiting, "running": len(cell.mailbox) - cell.mailbox.num_waiting,
    }  # fmt: skip
    return ActivitySnapshot(
        cell.name, totals.wall_s, totals.busy_s, totals.idle_s, totals.blocked_s, totals.working_s, mailbox,
        cell.activity.waiting_on() or "", os.getpid(),
    )  # fmt: skip


def wait_report(cell: ActorCell, now_s: float, takes: Callable[[str], bool]) -> WaitReport:
    """The answer to `WaitQuery`. `takes(name)`: whether that actor has room for a message of this process."""
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
