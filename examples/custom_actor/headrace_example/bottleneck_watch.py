"""A new actor kind: it follows who comes and goes, asks everybody how they spend their time, and names the bottleneck.

every `every_s` s:  ActivityQuery ──▶ each actor of `roles`      (the runtime answers, also while the actor is busy)
                    busy share since the last round ──▶ monitor  (stream "bottleneck")
anybody:            BottleneckQuery ──▶ this actor ──▶ Bottleneck
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.actors.messages import Metrics
from headrace.transport import (
    ActivityQuery,
    ActivitySnapshot,
    Actor,
    Context,
    PeerDown,
    PeerUp,
    TransportError,
    handles,
    message,
)

log = logging.getLogger(__name__)


@message("example.bottleneck_query")
@dataclass(frozen=True, slots=True)
class BottleneckQuery:
    """anyone → bottleneck_watch (ask → Bottleneck)"""


@message("example.bottleneck")
@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The busiest actor of the last round and its busy share, 0 to 1; "" before the first round."""

    name: str
    busy: float


class BottleneckWatch(Actor):
    """The constructor is the config schema: keyword-only, typed, checked."""

    def __init__(self, *, roles: Sequence[str], every_s: float = 10.0, monitor: str = "monitor") -> None:
        if not roles:
            raise ValueError("roles must name at least one role, got none")
        if not every_s > 0:
            raise ValueError(f"every_s must be > 0, got {every_s}")
        self._roles = tuple(roles)
        self._every_s = every_s
        self._monitor = monitor
        self._present: set[str] = set()
        self._last: dict[str, ActivitySnapshot] = {}
        self._busiest = Bottleneck("", 0.0)

    async def on_start(self, context: Context) -> None:
        for role in self._roles:
            context.watch(role)
        context.spawn(self._rounds(), "rounds")

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        self._present.add(message.name)

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        log.info("%s is gone: %s", message.name, message.reason)
        self._present.discard(message.name)
        self._last.pop(message.name, None)

    @handles(BottleneckQuery)
    async def bottleneck(self, message: BottleneckQuery) -> Bottleneck:
        return self._busiest

    async def _rounds(self) -> None:
        clock = self.context.clock
        started = clock.time()
        while True:
            await clock.sleep(self._every_s)
            shares = [(await self._busy_share(name), name) for name in sorted(self._present)]
            if not shares:
                continue
            self._busiest = Bottleneck(max(shares)[1], max(shares)[0])
            log.info("the busiest actor is %s (%.0f %%)", self._busiest.name, 100 * self._busiest.busy)
            values = {f"busy/{name}": share for share, name in shares}
            self.context.tell_soon(self._monitor, Metrics("bottleneck", "wall_s", clock.time() - started, values))

    async def _busy_share(self, name: str) -> float:
        """Of the time since the last round; 0 for an actor that does not answer (a PeerDown says more)."""
        try:
            now: ActivitySnapshot = await self.context.ask(name, ActivityQuery(), timeout_s=self._every_s)
        except TransportError as error:
            log.warning("%s does not answer: %s", name, error)
            return 0.0
        before = self._last.get(name)
        self._last[name] = now
        busy_s = now.busy_s - (before.busy_s if before else 0.0)
        wall_s = now.wall_s - (before.wall_s if before else 0.0)
        return busy_s / wall_s if wall_s > 0 else 0.0
