"""Deadlines for the phases of a session, which hold even against code that ignores its cancellation.

Used by the session engine for every call into an environment author's code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Reason = Literal["failed", "timed_out", "lost"]

CANCEL_GRACE_S = 1.0
"""How long code may go on after it was cancelled; then it is abandoned, and the session ends without it."""

_abandoned: set[asyncio.Task[Any]] = set()
"""The event loop holds tasks weakly: what was abandoned is kept here until it ends by itself."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `session_s` bounds the whole session from its first phase to its last; closing has `close_s` more."""

    reset_s: float = 60.0
    generate_s: float = 600.0
    step_s: float = 120.0
    close_s: float = 10.0
    session_s: float = 3600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                name = field.name.removesuffix("_s")
                raise ValueError(f"{name}_timeout_s must be > 0 seconds, got {value}; every phase needs a deadline")


class SessionError(Exception):
    """A session that ends without a trajectory. `counter` names what is counted."""

    def __init__(self, reason: Reason, detail: str, counter: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.detail = detail
        self.counter = counter


async def within(coroutine: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
    """The coroutine's result. Raises SessionError (timed_out) after `timeout_s`, and at most CANCEL_GRACE_S later."""
    task = asyncio.ensure_future(coroutine)
    try:
        done, _ = await asyncio.wait({task}, timeout=max(timeout_s, 0.0))
    except asyncio.CancelledError:
        await _end(task)
        raise
    if not done:
        await _end(task)
        raise SessionError("timed_out", f"{what} took longer than {timeout_s:.1f} s", "timed_out")
    if task.cancelled():
        raise SessionError("failed", f"{what} cancelled itself", "environment_error")
    return task.result()


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    if done:
        _retrieve(task)
    else:
        _abandoned.add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    _retrieve(task)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the exception, so that the event loop does not log it as forgotten: the session has failed already."""
    if not task.cancelled():
        task.exception()
