"""How the local launcher supervises; the names are those of the config group `launch`. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.launch.start_order import DEFAULT_ORDER
from headrace.launch.supervisor_state import RestartPolicy

LEAST_SILENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """`drain_timeout_s`: from the decision to end until everything that is left is killed. `stop_stagger_s`: how long
    each process may take before the next one in reverse order is asked too. `silence_s`: a process whose event loop
    gives no sign for this long is killed, and then counts as any that ended; loaded machines stall for seconds.
    `leave_timeout_s`: what a process that leaves in mid-run has for the work in its hands; then it is stopped.
    `lag_warn_s`: a handler that holds its event loop longer is named in the log.
    `restart_nodes`: whether the agent of a node that was lost is started again. `max_restarts_without_step`: of one
    process while training does not get on (stagnation.py); one more fails the run."""

    restart_policy: RestartPolicy
    restart_nodes: bool = True
    max_restarts_without_step: int = 10
    drain_timeout_s: float = 6.0
    stop_stagger_s: float = 0.5
    leave_timeout_s: float = 60.0
    silence_s: float = 60.0
    lag_warn_s: float = 1.0
    start_order: Sequence[str] = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for name in ("drain_timeout_s", "stop_stagger_s", "leave_timeout_s", "silence_s", "lag_warn_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"launch.{name} must be > 0 seconds, got {getattr(self, name)}")
        if self.max_restarts_without_step < 0:
            raise ValueError(
                f"launch.max_restarts_without_step must be >= 0, got {self.max_restarts_without_step}; 0 fails the run "
                "at the first loss"
            )
        if self.silence_s < LEAST_SILENCE_S:
            raise ValueError(
                f"launch.silence_s must be >= {LEAST_SILENCE_S:g} seconds, got {self.silence_s:g}: processes give a "
                "sign each second, later where they are busy"
            )

    @property
    def agent_policy(self) -> RestartPolicy:
        """For the agents of nodes."""
        return replace(self.restart_policy, restartable=None if self.restart_nodes else ())
