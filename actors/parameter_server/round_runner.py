"""Carries out one collective round: asks what group_round.py says, each ask with its deadline, and reports what becomes
of each member. Called by the parameter server's actor, one round at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.actors.messages import (
    AbortGroup,
    GatherGroup,
    GroupAborted,
    GroupOpened,
    GroupReady,
    JoinGroup,
    Metrics,
    OpenGroup,
    SendWeights,
    StageWeights,
    WeightsSent,
)
from headrace.actors.parameter_server.group_round import (
    SENDER,
    Abort,
    Action,
    Failed,
    Gather,
    GroupRound,
    Groups,
    Join,
    Kind,
    Open,
    Over,
    Receive,
    Send,
    Staged,
)
from headrace.transport import Context, PeerLost, RemoteError, TransportError
from headrace.transport.weights import Manifest

logger = logging.getLogger(__name__)

_BROKEN = "GroupBroken"


@dataclass(frozen=True, slots=True)
class RoundTimeouts:
    """gather_s: for "I am there", or "I have left": what any live member answers at once; join_s: for a new group;
    send_s: for the broadcast, verified. A rank ends by its own deadline, which it was told; the asker waits gather_s
    longer, to hear how far it came."""

    gather_s: float
    join_s: float
    send_s: float


class RoundRunner:
    """members: name → incarnation. staged, failed(member, reason): what becomes of each; over: at the end, once.
    ask(name, message, timeout_s): as the actor asks its members."""

    def __init__(
        self,
        context: Context,
        learner: str,
        groups: Groups,
        timeouts: RoundTimeouts,
        *,
        manifest: Manifest,
        members: dict[str, str],
        ask: Callable[[str, Any, float], Any],
        staged: Callable[[str], None],
        failed: Callable[[str, str], None],
        over: Callable[[], None],
    ) -> None:
        self._context = context
        self._learner = learner
        self._timeouts = timeouts
        self._manifest = manifest
        self._ask = ask
        self._staged, self._failed, self._over = staged, failed, over
        self._round = GroupRound(members, groups)
        self._opened = GroupOpened("", b"")

    def begin(self) -> None:
        self._carry_out(self._round.begin())

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Staged(member):
                    self._staged(member)
                case Failed(member, reason):
                    self._failed(member, reason)
                case Over():
                    self._over()
                case Abort():
                    self._context.spawn(self._abort(action), f"abort {action.group} at {action.member}")
                case Gather() | Open() | Join() | Send() | Receive():
                    self._context.spawn(self._do(action), f"{type(action).__name__} version {self._manifest.version}")

    async def _do(self, action: Gather | Open | Join | Send | Receive) -> None:
        asked = action.member if isinstance(action, (Gather, Join, Receive)) else SENDER
        try:
            actions = await self._done(action)
        except TransportError as error:
            actions = self._round.fault(asked, _kind(error), f"{type(error).__name__}: {error.text}")
        self._carry_out(actions)

    async def _done(self, action: Gather | Open | Join | Send | Receive) -> list[Action]:
        timeouts, manifest = self._timeouts, self._manifest
        match action:
            case Gather(member):
                ready: GroupReady = await self._ask(member, GatherGroup(), timeouts.gather_s)
                has_it = ready.version >= manifest.version
                return self._round.ready(member, ready.num_ranks, kind=ready.kind, has_it=has_it)
            case Open(group, world_size, keep, kind):
                message: Any = OpenGroup(group, world_size, timeouts.join_s, keep, kind)
                self._opened = await self._ask(self._learner, message, timeouts.gather_s)
                return self._round.opened()
            case Join(member, group, first_rank, world_size, keep):
                of = self._opened
                message = JoinGroup(group, of.backend, of.unique_id, first_rank, world_size, timeouts.join_s, keep)
                await self._ask(self._name(member), message, timeouts.join_s + timeouts.gather_s)
                return self._round.joined(member)
            case Send(group):
                message = SendWeights(group, manifest.version, timeouts.send_s)
                sent: WeightsSent = await self._ask(self._learner, message, timeouts.send_s + timeouts.gather_s)
                values = {"sent_s": sent.send_s, "nbytes": float(manifest.nbytes)}
                self._context.tell_soon("monitor", Metrics("weights/learner", "version", manifest.version, values))
                return self._round.sent()
            case Receive(member, group):
                message = StageWeights(manifest, group, timeouts.send_s)
                await self._ask(member, message, timeouts.send_s + timeouts.gather_s)
                return self._round.staged(member)

    async def _abort(self, action: Abort) -> None:
        progress: int | None = None
        try:
            name = self._name(action.member)
            timeout_s = self._timeouts.gather_s
            aborted: GroupAborted = await self._context.ask(name, AbortGroup(action.group), timeout_s=timeout_s)
            progress = aborted.progress
        except TransportError as error:
            logger.warning("%s did not leave group %s: %s", action.member, action.group, error)
        self._carry_out(self._round.aborted(action.member, progress))

    def _name(self, member: str) -> str:
        return self._learner if member == SENDER else member


def _kind(error: TransportError) -> Kind:
    if isinstance(error, PeerLost):
        return "lost"
    if isinstance(error, RemoteError):
        return "broken" if error.error_type == _BROKEN else "refused"
    return "late"
