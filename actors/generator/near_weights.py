"""How a generator reads weights that were staged on another node: its host's relay brings them into shared memory here.

Weights of its own node, and of transports that reach every node, are near already. Called by actor.py.
"""

from __future__ import annotations

import logging

from headrace.actors.messages import LocalWeights, WeightsLoaded, WeightsLocal
from headrace.transport import Context, PeerLost
from headrace.transport.weights import Manifest, WeightsMismatch
from headrace.transport.weights.nodes import near

logger = logging.getLogger(__name__)

RELAY = "relay"
_FETCH_TIMEOUT_S = 3600.0
"""A relay says sooner that it cannot: its own patience ends a fetch that does not move."""
_RELAY_START_S = 60.0
_PAUSE_S = 0.2


class NearWeights:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._reader = f"{context.name} {context.incarnation}"
        self._relay: str | None = None
        self.brought_s = 0.0
        """what the last version took to this host"""

    async def bring(self, manifest: Manifest) -> Manifest:
        """The same version as this process can open it. Raises WeightsMismatch where this node has no relay,
        TransportError where the relay cannot bring it. A relay that dies is asked again when it is back."""
        self.brought_s = 0.0
        here = near(manifest, self._context.node)
        if here is not None:
            return here
        began_s = self._context.clock.time()
        while True:
            self._relay = await self._find(manifest)
            message = LocalWeights(manifest, self._reader)
            try:
                reply: WeightsLocal = await self._context.ask(self._relay, message, timeout_s=_FETCH_TIMEOUT_S)
            except PeerLost as error:
                logger.warning("version %d is asked for again: %s", manifest.version, error)
                await self._context.clock.sleep(_PAUSE_S)
            else:
                self.brought_s = self._context.clock.time() - began_s
                return reply.manifest

    def loaded(self) -> None:
        """What was brought is not read any more."""
        if self._relay is not None:
            self._context.tell_soon(self._relay, WeightsLoaded(self._reader))
            self._relay = None

    async def _find(self, manifest: Manifest) -> str:
        group = self._context.group(RELAY)
        until_s = self._context.clock.time() + _RELAY_START_S
        while True:
            for name in group.members():
                if group.metadata(name).get("node") == self._context.node:
                    return name
            left_s = until_s - self._context.clock.time()
            if left_s <= 0:
                staged_on = manifest.location.partition(":")[0]
                raise WeightsMismatch(
                    f"version {manifest.version} was staged on node {staged_on!r}, and node {self._context.node!r} has "
                    f"no relay that would bring it here; give it one: topology.nodes.{self._context.node}.actors.relay"
                )
            await self._context.clock.sleep(min(_PAUSE_S, left_s))
