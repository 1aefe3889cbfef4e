"""Where an actor's time goes: busy, blocked on a role, or idle; the three add up to the wall time. A pure state
machine.

Busy: a step of one of its coroutines runs, or a `working` block is open. Otherwise blocked on the role of its oldest
outstanding ask; otherwise idle. `drive` wraps a coroutine so that each of its steps is timed. Never talks to anyone.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ActivityTotals:
    """Seconds since the start. busy_s + Σ blocked_s + idle_s = wall_s. `working_s` splits a part of busy_s by label."""

    wall_s: float
    busy_s: float
    idle_s: float
    blocked_s: dict[str, float]
    working_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Wait:
    """One outstanding wait on a peer: `peer` is an actor's name or a role, `what` the message that it is to answer."""

    peer: str
    what: str
    since_s: float


def step_name(actor: str, label: str) -> str:
    """How a step is called to a person: tasks have their actor's name in their label, handlers have not."""
    return label if label.startswith(actor) else f"{actor}.{label}"


class Activity:
    """`step`: the label of the coroutine whose step runs now (read by the loop's watchdog from another thread).
    `on_slow_step(label, seconds)` is called at the end of a step that held the event loop longer than
    `slow_step_s`."""

    def __init__(
        self,
        now: Callable[[], float],
        on_slow_step: Callable[[str, float], None] | None = None,
        slow_step_s: float = 1.0,
    ) -> None:
        self._now = now
        self._on_slow_step = on_slow_step
        self._slow_step_s = slow_step_s
        self._start_s = self._since_s = now()
        self._depth = 0
        self._waits: dict[int, tuple[str, str, object, float]] = {}  # role, peer, what, since
        self._work: dict[int, tuple[str, float]] = {}  # label, since
        self.step: str | None = None
        self._next_ticket = 0
        self._busy_s = 0.0
        self._idle_s = 0.0
        self._blocked_s: dict[str, float] = {}
        self._working_s: dict[str, float] = {}

    def begin(self) -> float:
        """A step begins; returns the time."""
        now_s = self._settle()
        self._depth += 1
        return now_s

    def end(self) -> float:
        now_s = self._settle()
        self._depth -= 1
        return now_s

    def block(self, role: str, peer: str = "", what: object = "") -> int:
        """A wait on `role` (on its member `peer`, for the answer to a message of type `what`) is outstanding from now
        until `unblock(ticket)`."""
        now_s = self._now() if self._depth else self._settle()
        self._next_ticket += 1
        self._waits[self._next_ticket] = (role, peer, what, now_s)
        return self._next_ticket

    def unblock(self, ticket: int) -> None:
        if not self._depth:
            self._settle()
        self._waits.pop(ticket, None)

    @contextmanager
    def waiting(self, role: str, what: str) -> Iterator[None]:
        """A wait on `role` that is no ask (for its news, for a live member), for `what`."""
        ticket = self.block(role, what=what)
        try:
            yield
        finally:
            self.unblock(ticket)

    @contextmanager
    def working(self, label: str) -> Iterator[None]:
        """Work off the loop (a thread, a child process, a GPU) counts as busy while this is open."""
        began_s = self.begin()
        ticket = self._next_ticket = self._next_ticket + 1
        self._work[ticket] = (label, began_s)
        try:
            yield
        finally:
            del self._work[ticket]
            self._working_s[label] = self._working_s.get(label, 0.0) + self.end() - began_s

    def on_next_end(self, call: Callable[[], None]) -> None:
        """Call it once the step under way has ended."""
        self._slow_step_s = float("-inf")
        self._on_slow_step = lambda label, took_s: call()

    def waiting_on(self) -> str | None:
        """The role of the oldest outstanding wait."""
        return next(iter(self._waits.values()))[0] if self._waits else None

    def waits(self, limit: int = 1000) -> list[Wait]:
        """The oldest outstanding waits, the oldest first."""
        oldest = islice(self._waits.values(), limit)
        return [
            Wait(peer or role, what.__qualname__ if isinstance(what, type) else str(what), since_s)
            for role, peer, what, since_s in oldest
        ]

    def work(self) -> list[tuple[str, float]]:
        """The open `working` blocks, the oldest first: label, and since when."""
        return list(self._work.values())

    def totals(self) -> ActivityTotals:
        now_s = self._settle()
        return ActivityTotals(
            now_s - self._start_s, self._busy_s, self._idle_s, dict(self._blocked_s), dict(self._working_s)
        )

    @types.coroutine
    def drive(self, coroutine: Coroutine[Any, Any, T], label: str) -> Generator[Any, Any, T]:
        """Await `coroutine`, counting each of its synchronous steps as busy."""
        # Every message passes here a few times: begin() and end() are written out.
        pending: BaseException | None = None
        value: Any = None
        now = self._now
        while True:
            began_s = now()
            if self._depth:
                self._busy_s += began_s - self._since_s
            elif self._waits:
                self._charge_oldest_wait(began_s - self._since_s)
            else:
                self._idle_s += began_s - self._since_s
            self._since_s = began_s
            self._depth += 1
            outer, self.step = self.step, label
            try:
                yielded = coroutine.send(value) if pending is None else coroutine.throw(pending)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                self.step = outer
                self._depth -= 1
                ended_s = now()
                self._busy_s += ended_s - self._since_s
                self._since_s = ended_s
                if ended_s - began_s > self._slow_step_s and self._on_slow_step is not None:
                    self._on_slow_step(label, ended_s - began_s)
            pending = None
            try:
                value = yield yielded
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # thrown in by the task (cancellation): it belongs to the coroutine
                pending = error

    def _settle(self) -> float:
        now_s = self._now()
        elapsed_s = now_s - self._since_s
        self._since_s = now_s
        if self._depth:
            self._busy_s += elapsed_s
        elif self._waits:
            self._charge_oldest_wait(elapsed_s)
        else:
            self._idle_s += elapsed_s
        return now_s

    def _charge_oldest_wait(self, elapsed_s: float) -> None:
        role = next(iter(self._waits.values()))[0]
        self._blocked_s[role] = self._blocked_s.get(role, 0.0) + elapsed_s
