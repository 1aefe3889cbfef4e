"""The runtime's own messages: peers coming and going, the time accounting, and the directory's protocol."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.transport.message import message


@message("headrace.peer_up")
@dataclass(frozen=True, slots=True)
class PeerUp:
    """To watchers of a role: `name` is serving. `metadata` is what it announced."""

    name: str
    incarnation: str
    metadata: dict[str, object]


@message("headrace.peer_down")
@dataclass(frozen=True, slots=True)
class PeerDown:
    """To watchers of a role: that incarnation of `name` is gone. Asks that were pending on it raise `PeerLost`."""

    name: str
    incarnation: str
    reason: str


@message("headrace.peer_leaving")
@dataclass(frozen=True, slots=True)
class PeerLeaving:
    """To watchers of a role that handle it: that incarnation of `name` takes no new work and ends when it has none.
    Groups leave it out from now on; who names it still reaches it. Its `PeerDown` follows."""

    name: str
    incarnation: str


@message("headrace.activity_query")
@dataclass(frozen=True, slots=True)
class ActivityQuery:
    """anyone → any actor (ask → ActivitySnapshot). The runtime answers it, also while the actor is busy."""


@message("headrace.activity_snapshot")
@dataclass(frozen=True, slots=True)
class ActivitySnapshot:
    """Seconds since the actor was added: busy_s + Σ blocked_s (by the peer's role) + idle_s = wall_s.
    `working_s` splits part of busy_s by label. `mailbox`: received, handled, dropped, refused, cancelled, peak,
    waiting, running. `waiting_on`: the role of the oldest outstanding ask, "" if none. `pid`: of its process."""

    name: str
    wall_s: float
    busy_s: float
    idle_s: float
    blocked_s: dict[str, float]
    working_s: dict[str, float]
    mailbox: dict[str, int]
    waiting_on: str = ""
    pid: int = 0


@message("headrace.wait_query")
@dataclass(frozen=True, slots=True)
class WaitQuery:
    """anyone → any actor (ask → WaitReport): for what do you wait? The runtime answers it, as ActivityQuery."""


@message("headrace.peer_wait")
@dataclass(frozen=True, slots=True)
class PeerWait:
    """`count` waits on `peer` (an actor, or a role) for the answer to `what`, a message's type or a few words; the
    oldest since `for_s` seconds. `no_credit`: its mailbox takes nothing more of this process."""

    peer: str
    what: str
    count: int
    for_s: float
    no_credit: bool = False


@message("headrace.task_report")
@dataclass(frozen=True, slots=True)
class TaskReport:
    """`count` tasks that stand at the same place; `label` and `message` (its type, where it handles one) of the oldest.
    `for_s`: since that message came; None for a task without one. `stack`: the outermost frame first."""

    label: str
    message: str
    count: int
    for_s: float | None
    stack: tuple[str, ...]


@message("headrace.wait_report")
@dataclass(frozen=True, slots=True)
class WaitReport:
    """What one actor waits for, and what it does. `working`: the open blocks of work off the loop, label → seconds, the
    oldest of each label. `mailbox_waiting`: messages that no handler has begun, the oldest of them since
    `oldest_waiting_s` seconds."""

    name: str
    incarnation: str
    pid: int
    waits: tuple[PeerWait, ...]
    tasks: tuple[TaskReport, ...]
    working: dict[str, float]
    mailbox_waiting: int
    oldest_waiting_s: float


@message("headrace.actor_record")
@dataclass(frozen=True, slots=True)
class ActorRecord:
    """Where an actor serves. `address` is its process's (network.Address as text); `window` and `window_bytes` are the
    credits that each sending process starts with."""

    name: str
    incarnation: str
    address: str
    metadata: dict[str, object]
    window: int
    window_bytes: int


@message("headrace.directory.subscribe")
@dataclass(frozen=True, slots=True)
class Subscribe:
    """runtime → directory (ask → DirectorySnapshot): I exist; send me changes from now on."""

    incarnation: str
    address: str


@message("headrace.directory.snapshot")
@dataclass(frozen=True, slots=True)
class DirectorySnapshot:
    """`leaving`: incarnations that take no new work."""

    revision: int
    actors: tuple[ActorRecord, ...]
    dead: dict[str, str]
    leaving: tuple[str, ...] = ()


@message("headrace.directory.register")
@dataclass(frozen=True, slots=True)
class Register:
    """runtime → directory (ask → Registered)."""

    actor: ActorRecord


@message("headrace.directory.unregister")
@dataclass(frozen=True, slots=True)
class Unregister:
    """runtime → directory (ask → Registered)."""

    name: str
    incarnation: str
    reason: str


@message("headrace.directory.leave")
@dataclass(frozen=True, slots=True)
class Leave:
    """runtime → directory (tell): this process stops in good order."""

    incarnation: str
    reason: str


@message("headrace.directory.registered")
@dataclass(frozen=True, slots=True)
class Registered:
    revision: int


@message("headrace.directory.change")
@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """directory → every runtime (tell). One of `up`, `down`, `dead_incarnation`, `leaving` (an incarnation) is set, or
    none in the last change of a catching-up, which only carries the revision."""

    revision: int
    up: ActorRecord | None = None
    down: PeerDown | None = None
    dead_incarnation: str = ""
    reason: str = ""
    leaving: str = ""


@message("headrace.directory.revision")
@dataclass(frozen=True, slots=True)
class DirectoryRevision:
    """directory → runtime (tell), where a heartbeat was behind: all changes up to `revision` were sent before."""

    revision: int


@message("headrace.directory.heartbeat")
@dataclass(frozen=True, slots=True)
class Heartbeat:
    """runtime → directory (tell), every second or so. `lag_s`: how late the event loop was at its last beat.
    `revision`: of the runtime's copy of the directory."""

    incarnation: str
    lag_s: float
    revision: int


QUERIES: tuple[type, ...] = (ActivityQuery, WaitQuery)
"""The runtime answers these itself, without credit and beside the mailbox: how it is with an actor that does not keep
up can always be asked."""
