"""What an engine's workers do in a collective broadcast, and the one rank of an engine that lives in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.actors.messages import JoinGroup
from headrace.transport.weights import Manifest
from headrace.transport.weights.collective import HEADRACE

if TYPE_CHECKING:
    from headrace.transport.weights.collective.receiver import CollectiveReceiver, ReceivedWeights


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Where and for how long a version is broadcast."""

    group: str
    timeout_s: float


class Ranks(Protocol):
    """An engine's workers, each a rank. Raises GroupBroken where a group broke or its deadline passed."""

    @property
    def kind(self) -> str:
        """HEADRACE, or VLLM: then each version is loaded as it arrives, whatever its manifest says of staging."""

    async def count(self) -> int:
        """How many; every one of them has answered."""

    async def join(self, message: JoinGroup) -> None: ...

    async def abort(self, group: str) -> int:
        """Leave the group; how far the slowest has come (see GroupAborted)."""


class LocalRank:
    """The rank of an engine whose model lies in this process, on the CPU. Nothing is imported before it joins."""

    kind = HEADRACE

    def __init__(self) -> None:
        self._made: CollectiveReceiver | None = None

    @property
    def receiver(self) -> CollectiveReceiver:
        if self._made is None:
            from headrace.transport.weights.collective.receiver import CollectiveReceiver

            self._made = CollectiveReceiver()
        return self._made

    async def count(self) -> int:
        return 1

    async def join(self, message: JoinGroup) -> None:
        await asyncio.to_thread(
            self.receiver.join,
            message.group,
            message.backend,
            message.unique_id,
            rank=message.first_rank,
            world_size=message.world_size,
            timeout_s=message.timeout_s,
            keep=message.keep,
        )

    async def receive(self, manifest: Manifest, broadcast: Broadcast) -> ReceivedWeights:
        """Raises WeightsMismatch too."""
        return await asyncio.to_thread(self.receiver.receive, broadcast.group, manifest, timeout_s=broadcast.timeout_s)

    async def abort(self, group: str) -> int:
        return await asyncio.to_thread(self.receiver.abort, group)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
