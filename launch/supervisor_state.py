"""What a supervisor decides when one of its children ends: nothing, restart it, or escalate. A pure state machine.

One-for-one: only the child that died is restarted. Two things escalate, and the reason names the first cause: more
than `max_restarts` within `window_s`, and one child that ends `max_failed_starts` times in a row before it was up (it
crashes in a constructor or an on_start: waiting for the window to fill would only hide the cause). Called by
node_supervisor.py for the processes of a node, and by node_agents.py for the agents of a run.

    waiting ─started─▶ starting ─up─▶ running ─exited─▶ backing_off ─started─▶ …
                            └───────exited──────────────────┘       any ─stop─▶ stopping ─exited─▶ ended
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Literal

Phase = Literal["waiting", "starting", "running", "backing_off", "stopping", "ended"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: `code` as in subprocess (negative: killed by that signal); `why` where we killed it;
    `last_lines` of its log at that moment."""

    code: int
    why: str = ""
    last_lines: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"killed: {self.why}"
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"signal {-self.code}"


@dataclass(frozen=True, slots=True)
class Ignore:
    """It was asked to stop, or it is not ours any more."""


@dataclass(frozen=True, slots=True)
class Restart:
    child: str
    after_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Escalate:
    """It is not restarted. `cause` is the child whose end came first, and `last_lines` of its log then."""

    child: str
    reason: str
    cause: str
    last_lines: str


Decision = Ignore | Restart | Escalate


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """`restartable`: roles whose children may be restarted, None for all; any other loss escalates. The n-th restart of
    a child within the window waits for min(first_delay_s · 2^(n-1), max_delay_s), less a random share of at most
    `jitter` of it, so that what died together does not come back together. A child that is not up after
    `start_timeout_s` is late."""

    restartable: tuple[str, ...] | None = None
    max_restarts: int = 10
    window_s: float = 60.0
    max_failed_starts: int = 3
    start_timeout_s: float = 600.0
    first_delay_s: float = 0.5
    max_delay_s: float = 5.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ValueError(
                f"launch.max_restarts must be >= 0, got {self.max_restarts}; 0 fails the run at the first loss"
            )
        if self.max_failed_starts < 1:
            raise ValueError(f"launch.max_failed_starts must be >= 1, got {self.max_failed_starts}")
        for key, seconds in (
            ("restart_window_s", self.window_s),
            ("start_timeout_s", self.start_timeout_s),
            ("first_delay_s", self.first_delay_s),
            ("max_delay_s", self.max_delay_s),
        ):
            if not seconds > 0:
                raise ValueError(f"launch.{key} must be > 0 seconds, got {seconds}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"launch.jitter must be from 0 to 1, got {self.jitter}")


@dataclass(slots=True)
class _Child:
    role: str
    phase: Phase = "waiting"
    started_s: float = 0.0
    failed_starts: list[Exit] = field(default_factory=list)
    restarts_s: deque[float] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Loss:
    at_s: float
    child: str
    exit: Exit


class SupervisorState:
    """Times are seconds of one monotonic clock, given by the caller. `seed`: of the jitter."""

    def __init__(self, policy: RestartPolicy, seed: int | str = 0) -> None:
        self._policy = policy
        self._random = Random(seed)
        self._children: dict[str, _Child] = {}
        self._losses: deque[_Loss] = deque()
        self._stopping = False

    @property
    def stopping(self) -> bool:
        return self._stopping

    def phase(self, child: str) -> Phase | None:
        """None: it is not a child of this supervisor."""
        known = self._children.get(child)
        return None if known is None else known.phase

    def names(self) -> list[str]:
        """All children, in the order in which they came."""
        return list(self._children)

    def living(self) -> list[str]:
        """Children that have a process, in the order in which they came."""
        living = ("starting", "running", "stopping")
        return [name for name, child in self._children.items() if child.phase in living]

    def late(self, now_s: float) -> list[str]:
        """Children that have been starting for longer than `start_timeout_s`."""
        limit_s = now_s - self._policy.start_timeout_s
        return [n for n, child in self._children.items() if child.phase == "starting" and child.started_s < limit_s]

    # --- transitions ------------------------------------------------------------------------------------------------

    def own(self, child: str, role: str) -> None:
        """A new child, or one that came back after it ended here."""
        if self.phase(child) not in (None, "ended"):
            raise ValueError(f"{child} is {self.phase(child)} here already")
        self._children[child] = _Child(role)

    def started(self, child: str, now_s: float) -> None:
        known = self._children[child]
        if known.phase not in ("waiting", "backing_off"):
            raise ValueError(f"{child} was started while {known.phase}")
        known.phase, known.started_s = "starting", now_s

    def up(self, child: str) -> None:
        """All that it hosts has been announced."""
        known = self._children[child]
        if known.phase == "starting":
            known.phase = "running"
            known.failed_starts.clear()

    def stop(self, child: str) -> None:
        """It is being asked to stop: its end is no failure."""
        known = self._children[child]
        if known.phase in ("starting", "running"):
            known.phase = "stopping"
        elif known.phase in ("waiting", "backing_off"):
            known.phase = "ended"

    def stop_all(self) -> None:
        """No end of a child is a failure from now on, and nothing is restarted."""
        self._stopping = True
        for child in self._children:
            self.stop(child)

    def exited(self, child: str, exit: Exit, now_s: float) -> Decision:
        known = self._children[child]
        if known.phase == "stopping" or self._stopping:
            known.phase = "ended"
            return Ignore()
        if known.phase not in ("starting", "running"):
            raise ValueError(f"{child} ended while {known.phase}")
        if known.phase == "starting":
            known.failed_starts.append(exit)
        return self._decide(child, known, exit, now_s)

    def _decide(self, name: str, child: _Child, exit: Exit, now_s: float) -> Decision:
        policy = self._policy
        while self._losses and now_s - self._losses[0].at_s > policy.window_s:
            self._losses.popleft()
        while child.restarts_s and now_s - child.restarts_s[0] > policy.window_s:
            child.restarts_s.popleft()
        if policy.restartable is not None and child.role not in policy.restartable:
            reason = f"{name} ended ({exit}) and its role {child.role!r} is not restarted"
            return self._escalate(name, child, reason, _Loss(now_s, name, exit))
        if len(child.failed_starts) >= policy.max_failed_starts:
            reason = (
                f"{name} ended before it was up, {len(child.failed_starts)} times in a row, "
                f"the most that launch.max_failed_starts allows; the first time: {child.failed_starts[0]}"
            )
            return self._escalate(name, child, reason, _Loss(now_s, name, child.failed_starts[0]))
        if len(self._losses) >= policy.max_restarts:
            first = self._losses[0] if self._losses else _Loss(now_s, name, exit)
            reason = (
                f"{name} ended ({exit}) after {len(self._losses)} restarts within {policy.window_s:g} s, "
                f"the most that launch.max_restarts allows; the first was {first.child} ({first.exit})"
            )
            return self._escalate(name, child, reason, first)
        self._losses.append(_Loss(now_s, name, exit))
        child.restarts_s.append(now_s)
        child.phase = "backing_off"
        attempt = len(child.restarts_s)
        delay_s = min(policy.first_delay_s * 2 ** (attempt - 1), policy.max_delay_s)
        return Restart(name, delay_s * (1 - policy.jitter * self._random.random()), attempt)

    @staticmethod
    def _escalate(name: str, child: _Child, reason: str, first: _Loss) -> Escalate:
        child.phase = "ended"
        return Escalate(name, reason, first.child, first.exit.last_lines)
