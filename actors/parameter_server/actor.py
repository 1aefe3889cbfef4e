"""The parameter server: the control plane of the weights. It moves no bytes; it says who serves which version.

The rules are rollout.py's; this actor carries out their actions. Each phase's deadline is that of its ask: a member
that misses it, or refuses, is evicted, counted and reported, and tried again at the next version.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from headrace.actors.messages import (
    Accepted,
    CommitWeights,
    FetchBucket,
    Metrics,
    PublishWeights,
    StageWeights,
    SyncEvaluators,
    VersionServed,
    WeightsBucket,
    WeightsCommitted,
    WeightsRefused,
    WeightsReleased,
    WithdrawWeights,
)
from headrace.actors.parameter_server.group_round import Groups
from headrace.actors.parameter_server.rollout import (
    INITIAL,
    Action,
    Commit,
    Evicted,
    Linger,
    Refused,
    Release,
    Rollout,
    Round,
    Served,
    Stage,
    Synced,
)
from headrace.actors.parameter_server.round_runner import RoundRunner, RoundTimeouts
from headrace.actors.parameter_server.source import WeightSource
from headrace.transport import Actor, Context, PeerDown, PeerLost, PeerUp, TransportError, handles, insist
from headrace.transport.directory import role_of
from headrace.transport.weights import Manifest, check_min_mb_per_s

logger = logging.getLogger(__name__)

_BROKEN_PAUSE_S = 0.2
_NEWS_TIMEOUT_S = 10.0
_NEWS_PATIENCE_S = 900.0
"""Beyond it a receiver is another one, which needs no old news: a dispatcher that comes up is told at once, and a
learner begins with free buffers."""


class ParameterServer(Actor):
    """stage_timeout_s, commit_timeout_s: what a member has for each phase; min_mb_per_s: how much longer the first is
    for the bytes. gather_timeout_s, join_timeout_s: of a
    collective broadcast, to say that it is there, and to join a new group. linger_s: how long members that are ready
    for one wait for others that are just loading the last. generators, evaluators: roles; one without
    members is fine. dispatcher, learner: who hears of served versions; the learner of released buffers too.
    max_bases: see WeightSource."""

    def __init__(
        self,
        *,
        stage_timeout_s: float = 60.0,
        commit_timeout_s: float = 60.0,
        min_mb_per_s: float = 50.0,
        gather_timeout_s: float = 10.0,
        join_timeout_s: float = 60.0,
        linger_s: float = 5.0,
        max_bases: int = 2,
        generators: str = "generator",
        evaluators: str = "evaluator",
        dispatcher: str = "dispatcher/0",
        learner: str = "learner/0",
    ) -> None:
        for name, value in (
            ("stage_timeout_s", stage_timeout_s),
            ("commit_timeout_s", commit_timeout_s),
            ("gather_timeout_s", gather_timeout_s),
            ("join_timeout_s", join_timeout_s),
        ):
            if not value > 0:
                raise ValueError(f"parameter_server.{name} must be > 0, got {value}")
        check_min_mb_per_s("parameter_server.min_mb_per_s", min_mb_per_s)
        if linger_s < 0:
            raise ValueError(f"parameter_server.linger_s must be >= 0, got {linger_s}; 0 waits for nobody")
        if generators == evaluators:
            raise ValueError(f"parameter_server: generators and evaluators must be two roles, got {generators!r} twice")
        self._stage_timeout_s = stage_timeout_s
        self._commit_timeout_s = commit_timeout_s
        self._min_mb_per_s = min_mb_per_s
        self._gather_timeout_s, self._join_timeout_s = gather_timeout_s, join_timeout_s
        self._linger_s = linger_s
        self._generators = generators
        self._evaluators = evaluators
        self._dispatcher = dispatcher
        self._learner = learner
        self._rollout = Rollout()
        self._source = WeightSource(max_bases=max_bases)
        self._num_evictions = 0
        self._synced: asyncio.Future[Synced] | None = None
        self._in_order: dict[str, asyncio.Lock] = {}

    async def on_start(self, context: Context) -> None:
        self._groups = Groups(context.incarnation)
        context.watch(role_of(self._learner))
        context.watch(self._generators)
        context.watch(self._evaluators)
        context.watch(role_of(self._dispatcher))

    @handles(PublishWeights)
    async def publish(self, message: PublishWeights) -> Accepted:
        """The learner's next version. Raises ValueError (a RemoteError there) where its number is not a new one."""
        actions = self._rollout.publish(message.manifest)
        self._source.publish(message.manifest)
        self._carry_out(actions)
        return Accepted()

    @handles(FetchBucket, concurrent=8)
    async def fetch_bucket(self, message: FetchBucket) -> WeightsBucket:
        return await self.context.run_blocking(self._source.bucket, message, self.context.node, label="bucket")

    @handles(WithdrawWeights)
    async def withdraw(self, message: WithdrawWeights) -> Accepted:
        self._carry_out(self._rollout.withdraw())
        return Accepted()

    @handles(SyncEvaluators, concurrent=1)
    async def sync_evaluators(self, message: SyncEvaluators) -> VersionServed:
        """Answers when every live evaluator holds the newest version; raises RuntimeError naming those that failed."""
        self._synced = asyncio.get_running_loop().create_future()
        self._carry_out(self._rollout.sync())
        synced = await self._synced
        if synced.failed:
            raise RuntimeError(f"version {synced.version} was not taken by {', '.join(synced.failed)}; see their logs")
        return VersionServed(synced.version, synced.step)

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        if role_of(message.name) == role_of(self._learner):
            return
        if role_of(message.name) == role_of(self._dispatcher):
            if self._rollout.served > INITIAL:  # one that was restarted may have missed the news
                self._tell_in_order(message.name, VersionServed(self._rollout.served, self._rollout.served_step))
            return
        follows = role_of(message.name) == self._generators
        self._carry_out(self._rollout.member_up(message.name, message.incarnation, follows=follows))

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        if role_of(message.name) == role_of(self._learner):
            self._groups.clear()
            return
        if role_of(message.name) == role_of(self._dispatcher):
            return
        self._groups.member_down(message.name)
        self._carry_out(self._rollout.member_down(message.name, message.incarnation))

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Stage():
                    self.context.spawn(self._stage(action), f"stage {action.manifest.version} on {action.member}")
                case Round():
                    self._run_round(action)
                case Linger(number):
                    self.context.spawn(self._linger(number), "linger")
                case Commit():
                    self.context.spawn(self._commit(action), f"commit {action.version} on {action.member}")
                case Served(version, step):
                    for receiver in (self._dispatcher, self._learner):
                        self._tell_in_order(receiver, VersionServed(version, step))
                case Release(version):
                    self._source.release(version)
                    self._tell_in_order(self._learner, WeightsReleased(version))
                case Refused(version, reason):
                    self._tell_in_order(self._learner, WeightsRefused(version, reason))
                case Evicted():
                    self._report_eviction(action)
                case Synced():
                    if self._synced is not None and not self._synced.done():
                        self._synced.set_result(action)

    async def _stage(self, action: Stage) -> None:
        version = action.manifest.version
        try:
            message = StageWeights(action.manifest)
            await self._ask(action.member, action.incarnation, message, self._staging_limit_s(action.manifest))
        except TransportError as error:
            self._carry_out(self._rollout.failed(action.member, action.incarnation, version, _reason(error)))
        else:
            self._carry_out(self._rollout.staged(action.member, action.incarnation, version))

    def _run_round(self, action: Round) -> None:
        version, members = action.manifest.version, dict(action.members)
        rollout = self._rollout

        async def ask(name: str, message: object, timeout_s: float) -> Any:
            if name in members:
                return await self._ask(name, members[name], message, timeout_s)
            return await self.context.ask(name, message, timeout_s=timeout_s)

        RoundRunner(
            self.context,
            self._learner,
            self._groups,
            RoundTimeouts(self._gather_timeout_s, self._join_timeout_s, self._staging_limit_s(action.manifest)),
            manifest=action.manifest,
            members=members,
            ask=ask,
            staged=lambda name: self._carry_out(rollout.staged(name, members[name], version)),
            failed=lambda name, reason: self._carry_out(rollout.failed(name, members[name], version, reason)),
            over=lambda: self._carry_out(rollout.round_over()),
        ).begin()

    def _staging_limit_s(self, manifest: Manifest) -> float:
        return self._stage_timeout_s + manifest.travel_s(self._min_mb_per_s)

    async def _linger(self, number: int) -> None:
        await self.context.clock.sleep(self._linger_s)
        self._carry_out(self._rollout.linger_over(number))

    async def _commit(self, action: Commit) -> None:
        try:
            message = CommitWeights(action.version)
            reply: WeightsCommitted = await self._ask(
                action.member, action.incarnation, message, self._commit_timeout_s
            )
        except TransportError as error:
            self._carry_out(self._rollout.failed(action.member, action.incarnation, action.version, _reason(error)))
        else:
            self._carry_out(
                self._rollout.committed(action.member, action.incarnation, action.version, serving=reply.version)
            )

    async def _ask(self, member: str, incarnation: str, message: object, timeout_s: float) -> Any:
        """Within the phase's deadline; said again where only the connection to the member broke."""
        clock = self.context.clock
        until_s = clock.time() + timeout_s
        while True:
            try:
                return await self.context.ask(member, message, timeout_s=until_s - clock.time())
            except PeerLost:
                await clock.sleep(_BROKEN_PAUSE_S)
                if clock.time() >= until_s or not self._rollout.knows(member, incarnation):
                    raise

    def _report_eviction(self, action: Evicted) -> None:
        self._num_evictions += 1
        logger.warning("version %d goes on without %s: %s", action.version, action.member, action.reason)
        values = {"failed": 1.0, "evictions_total": float(self._num_evictions)}
        self.context.tell_soon("monitor", Metrics("weights", "version", action.version, values))

    def _tell_in_order(self, receiver: str, message: VersionServed | WeightsReleased | WeightsRefused) -> None:
        """Never waits here: an absent dispatcher must not hold up the weights. Bounded by the versions under way."""
        self.context.spawn(self._tell(receiver, message), f"tell {receiver}")

    async def _tell(self, receiver: str, message: VersionServed | WeightsReleased | WeightsRefused) -> None:
        """Until it has heard; it may hear twice."""
        async with self._in_order.setdefault(receiver, asyncio.Lock()):
            try:
                await insist(self.context, receiver, message, timeout_s=_NEWS_TIMEOUT_S, patience_s=_NEWS_PATIENCE_S)
            except TransportError as error:
                logger.warning("%s was not told %r: %s", receiver, message, error)


def _reason(error: TransportError) -> str:
    return f"{type(error).__name__}: {error.text}"
