"""A rank of the learner beside rank 0: holds its part of the weights, and does what the learner announces.

    consumes  JoinRanks   ask, from the learner: whose rank it is, and where they meet
    produces  nothing that other actors see: it trains, publishes and saves with the learner
    waits for what the learner announces next (torch.distributed, in its worker thread)
It serves one learner in its life: where that one ends, it ends too, and its successor serves the next.
"""

from __future__ import annotations

import asyncio
import logging

from headrace.actors.learner.actor import Learner
from headrace.actors.learner.ranks.meeting import RankLost
from headrace.actors.learner.threads import ComputeThreads
from headrace.actors.messages import Accepted, JoinRanks
from headrace.transport import Actor, Context, handles

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 30.0
"""for the learner, which stops before its ranks, to say that it needs them no more"""


class LearnerRank(Actor):
    """`learner`: made of the learner's own settings, and never started: how it makes a workbench."""

    def __init__(self, *, learner: Learner) -> None:
        self._recipe = learner.recipe()
        self._learner: str | None = None
        self._serving: asyncio.Task[None] | None = None

    async def on_start(self, context: Context) -> None:
        self._threads = ComputeThreads(context, num_threads=self._recipe.num_threads)

    @handles(JoinRanks)
    async def join(self, message: JoinRanks) -> Accepted:
        """Raises (at the asker) RankLost where it was another learner's."""
        if self._learner is None:
            self._learner = message.incarnation
            self._serving = self.context.spawn(self._serve(message), "serve")
        elif self._learner != message.incarnation:
            error = RankLost(f"{self.context.name} was a rank of learner {self._learner}, which is gone")
            self.context.spawn(_raise(error), "end")
            raise error
        return Accepted()

    async def on_stop(self) -> None:
        if self._serving is not None:
            await asyncio.wait([self._serving], timeout=END_TIMEOUT_S)

    async def _serve(self, message: JoinRanks) -> None:
        """To the learner's end. An error ends this actor: the learner is gone, or its own part failed."""
        await self._threads.run("rank", self._serve_now, message)
        logger.info("the learner needs its rank %d no more", message.rank)

    def _serve_now(self, message: JoinRanks) -> None:
        import torch

        from headrace.actors.learner.ranks.group import RankGroup, join_store

        store = join_store(message.host, message.port, message.size, timeout_s=message.timeout_s)
        device = torch.device(self._recipe.device)
        group = RankGroup(store, rank=message.rank, size=message.size, device=device, host=message.host)
        self._recipe.make_bench(self._threads, group).serve(group.heard)
        group.close()


async def _raise(error: Exception) -> None:
    raise error
