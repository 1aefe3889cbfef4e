"""The learner in a collective broadcast: rank 0 of the groups that the parameter server asks for. Handlers only; the
sender beneath works in threads of its own, and training goes on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from headrace.actors.messages import (
    AbortGroup,
    GroupAborted,
    GroupJoined,
    GroupOpened,
    JoinGroup,
    OpenGroup,
    SendWeights,
    WeightsSent,
)
from headrace.transport import Actor, handles
from headrace.transport.weights.collective import COLLECTIVE
from headrace.transport.weights.collective.communicator import GpuLost

if TYPE_CHECKING:
    from headrace.transport.weights import WeightSender
    from headrace.transport.weights.collective.sender import CollectiveSender


class WeightGroupRoot(Actor):
    """To be derived from; `_sender` and `_weights_transport` are the learner's."""

    _sender: WeightSender | None = None
    _weights_transport: str = ""

    @handles(OpenGroup, concurrent=True)
    async def open_group(self, message: OpenGroup) -> GroupOpened:
        """Raises ValueError where the back-end cannot work here."""
        sender = self._collective()
        backend, unique_id = await asyncio.to_thread(
            sender.open_group,
            message.group,
            world_size=message.world_size,
            timeout_s=message.timeout_s,
            keep=message.keep,
            kind=message.kind,
        )
        return GroupOpened(backend, unique_id)

    @handles(JoinGroup, concurrent=True)
    async def join_group(self, message: JoinGroup) -> GroupJoined:
        """Raises GroupBroken, and GpuLost, which ends this learner too: its successor goes on from the checkpoint."""
        try:
            await asyncio.to_thread(self._collective().joined, message.group, message.timeout_s)
        except GpuLost as error:
            self.context.spawn(_raise(error), "gpu lost")
            raise
        return GroupJoined(message.group)

    @handles(SendWeights, concurrent=True)
    async def send_weights(self, message: SendWeights) -> WeightsSent:
        """Raises WeightsMismatch where the version is not held any more, GroupBroken."""
        sender = self._collective()
        send_s = await asyncio.to_thread(sender.send, message.group, message.version, timeout_s=message.timeout_s)
        return WeightsSent(message.version, send_s)

    @handles(AbortGroup, concurrent=True)
    async def abort_group(self, message: AbortGroup) -> GroupAborted:
        return GroupAborted(await asyncio.to_thread(self._collective().abort, message.group))

    def _collective(self) -> CollectiveSender:
        if self._sender is None or self._weights_transport != COLLECTIVE:
            raise ValueError(
                f"this learner sends weights by {self._weights_transport!r}, not in groups; set weights={COLLECTIVE}"
            )
        return cast("CollectiveSender", self._sender)


async def _raise(error: Exception) -> None:
    raise error
