"""What the run's supervisor and the supervisors of its nodes say to each other, wherever a node is.

The supervisor owns the run: what is placed where, and when it ends. A node's supervisor owns the processes of its
node: it starts, watches, restarts and kills them by itself, and reports what it did. Reports come in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.launch.supervisor_state import Exit
from headrace.launch.topology import ProcessPlan
from headrace.transport import message

NODE_ROLE = "node"
Next = Literal["restart", "escalate", "nothing"]


def node_actor(node: str) -> str:
    """The actor that supervises a node."""
    return f"{NODE_ROLE}/{node}"


@message("node.start")
@dataclass(frozen=True, slots=True)
class StartProcess:
    """supervisor → node (ask → Accepted): it is yours from now on. `plan` names this node and its slots."""

    plan: ProcessPlan


@message("node.stop")
@dataclass(frozen=True, slots=True)
class StopProcess:
    """supervisor → node (ask → Accepted): SIGTERM; it is not restarted."""

    process: str


@message("node.let_leave")
@dataclass(frozen=True, slots=True)
class LetLeave:
    """supervisor → node (ask → Accepted, with the incarnation that is to end, "" where there is none): it ends by
    itself, in mid-run; it is not restarted, and its end is no failure."""

    process: str


@message("node.kill")
@dataclass(frozen=True, slots=True)
class KillProcess:
    """supervisor → node (ask → Accepted): SIGKILL to that incarnation and all it started; counts as an end of its
    own, for the reason `why`."""

    process: str
    incarnation: str
    why: str


@message("node.restart_nothing")
@dataclass(frozen=True, slots=True)
class RestartNothing:
    """supervisor → node (ask → Accepted): the run is ending; no end of a process is a failure any more."""


@message("node.started")
@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """node → supervisor (ask → Accepted). `session`: the id, on that machine, of the session that it leads; `log`: the
    file that it writes, in the run's folder."""

    node: str
    process: str
    incarnation: str
    session: int
    log: str


@message("node.ended")
@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """node → supervisor (ask → Accepted), the moment it is seen. `next`: what the node does about it: `restart` number
    `attempt` after `restart_s`; `escalate` for `reason`, which began with `cause`, whose log ended in `last_lines`."""

    process: str
    incarnation: str
    exit: Exit
    next: Next
    restart_s: float = 0.0
    attempt: int = 0
    reason: str = ""
    cause: str = ""
    last_lines: str = ""
