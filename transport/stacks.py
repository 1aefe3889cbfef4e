"""Where code stands right now, as short lines of text: a thread's Python stack, or the chain of awaits of a task.

`Task.get_stack` shows only the outermost frame of a task that waits; here the chain is followed to what is awaited at
its end, also where coroutines are stepped by hand. Called when something is diagnosed, never on a message's way.
"""

from __future__ import annotations

import asyncio
import linecache
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from headrace.transport.activity import Activity
from headrace.transport.first_step import FirstStep

MAX_FRAMES = 12
_MAX_LINE = 200
_SHOWN_FOLDERS = 3
_BY_HAND = (Activity.drive.__code__, FirstStep.rest.__code__)
"""They send into a coroutine that they call `coroutine`, and say nothing themselves."""


def thread_stack(thread_id: int, limit: int = MAX_FRAMES) -> tuple[str, ...]:
    """The innermost `limit` frames of a running thread, the outermost first; empty where there is no such thread."""
    frame = sys._current_frames().get(thread_id)
    frames: list[FrameType] = []
    while frame is not None and len(frames) < limit:
        frames.append(frame)
        frame = frame.f_back
    return tuple(_line(frame) for frame in reversed(frames))


def task_stack(task: asyncio.Task[Any], limit: int = MAX_FRAMES) -> tuple[str, ...]:
    """The innermost `limit` frames from the task's coroutine to what it awaits, the outermost first."""
    return tuple(_line(frame) for frame in list(_awaiting(task.get_coro()))[-limit:])


def sleeps(task: asyncio.Task[Any]) -> bool:
    """Whether it only waits for its time."""
    frames = list(_awaiting(task.get_coro()))
    return bool(frames) and frames[-1].f_code is asyncio.sleep.__code__


def _awaiting(awaitable: Any) -> Iterator[FrameType]:
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is None:
            return  # a future, or something of the interpreter's own
        if frame.f_code in _BY_HAND:
            awaitable = frame.f_locals["coroutine"]
            continue
        yield frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)


def _line(frame: FrameType) -> str:
    path, number = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(path, number).strip()
    where = f"{'/'.join(path.split('/')[-_SHOWN_FOLDERS:])}:{number} in {frame.f_code.co_name}"
    return f"{where}: {source}"[:_MAX_LINE] if source else where[:_MAX_LINE]
