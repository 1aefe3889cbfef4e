"""What a supervisor decides when a process ends: nothing, restart it, or fail the run. A pure state machine.

One-for-one: only the process that died is restarted. More than `max_restarts` within `window_s` fails the run, and
the reason names the first cause. Called by supervisor.py, which does the spawning, waiting and killing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["waiting", "running", "backing_off", "stopping", "ended"]


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: `code` as in subprocess (negative: killed by that signal); `why` where we killed it."""

    code: int
    why: str = ""

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
    process: str
    after_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class FailRun:
    process: str
    reason: str


Decision = Ignore | Restart | FailRun


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """`restartable`: roles whose processes may be restarted. Any other loss fails the run.
    Delay before the n-th restart of a process within the window: min(first_delay_s · 2^(n-1), max_delay_s)."""

    restartable: frozenset[str] = frozenset()
    max_restarts: int = 10
    window_s: float = 60.0
    first_delay_s: float = 0.5
    max_delay_s: float = 10.0

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ValueError(
                f"launch.max_restarts must be >= 0, got {self.max_restarts}; 0 fails the run at the first loss"
            )
        for key, seconds in (
            ("restart_window_s", self.window_s),
            ("first_delay_s", self.first_delay_s),
            ("max_delay_s", self.max_delay_s),
        ):
            if not seconds > 0:
                raise ValueError(f"launch.{key} must be > 0, got {seconds}")


@dataclass(slots=True)
class _Child:
    role: str
    phase: Phase = "waiting"
    restarts_s: deque[float] = field(default_factory=deque)


class SupervisorState:
    """Times are seconds of one monotonic clock, given by the caller."""

    def __init__(self, processes: dict[str, str], policy: RestartPolicy) -> None:
        """`processes`: name → role."""
        self._children = {name: _Child(role) for name, role in processes.items()}
        self._policy = policy
        self._restarts: deque[tuple[float, str]] = deque()
        self._stopping = False
        self.num_restarts = 0

    @property
    def stopping(self) -> bool:
        return self._stopping

    def phase(self, process: str) -> Phase:
        return self._children[process].phase

    def living(self) -> list[str]:
        """Processes that run or are to stop, in the order of the topology."""
        return [name for name, child in self._children.items() if child.phase in ("running", "stopping")]

    def started(self, process: str) -> None:
        child = self._children[process]
        if child.phase not in ("waiting", "backing_off"):
            raise ValueError(f"{process} was started while {child.phase}")
        child.phase = "running"

    def stop(self, process: str) -> None:
        """It is being asked to stop: its end is no failure."""
        child = self._children[process]
        if child.phase == "running":
            child.phase = "stopping"
        elif child.phase in ("waiting", "backing_off"):
            child.phase = "ended"

    def stop_all(self) -> None:
        """The run is ending: no end of a process is a failure from now on, and nothing is restarted."""
        self._stopping = True
        for process in self._children:
            self.stop(process)

    def exited(self, process: str, exit: Exit, now_s: float) -> Decision:
        child = self._children[process]
        if child.phase == "stopping" or self._stopping:
            child.phase = "ended"
            return Ignore()
        if child.phase != "running":
            raise ValueError(f"{process} ended while {child.phase}")
        if child.role not in self._policy.restartable:
            child.phase = "ended"
            return FailRun(process, f"{process} ended ({exit}) and its role {child.role!r} is not restarted")
        return self._restart(process, child, exit, now_s)

    def _restart(self, process: str, child: _Child, exit: Exit, now_s: float) -> Decision:
        policy = self._policy
        while self._restarts and now_s - self._restarts[0][0] > policy.window_s:
            self._restarts.popleft()
        while child.restarts_s and now_s - child.restarts_s[0] > policy.window_s:
            child.restarts_s.popleft()
        if len(self._restarts) >= policy.max_restarts:
            child.phase = "ended"
            first = f"; the first was {self._restarts[0][1]}" if self._restarts else ""
            return FailRun(
                process,
                f"{process} ended ({exit}) after {len(self._restarts)} restarts within {policy.window_s:g} s, "
                f"the most that launch.max_restarts allows{first}",
            )
        self._restarts.append((now_s, f"{process} ({exit})"))
        child.restarts_s.append(now_s)
        child.phase = "backing_off"
        self.num_restarts += 1
        attempt = len(child.restarts_s)
        return Restart(process, min(policy.first_delay_s * 2 ** (attempt - 1), policy.max_delay_s), attempt)
