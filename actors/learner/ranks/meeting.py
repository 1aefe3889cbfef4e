"""How the learner finds its other ranks: it opens a meeting place, tells each where, and waits until all are there.

Called in the learner's start. A rank that was another learner's ends when it is asked, and its successor is asked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.actors.learner.threads import ComputeThreads
from headrace.actors.messages import JoinRanks
from headrace.transport import Context, RemoteError, UnknownActor, insist

if TYPE_CHECKING:
    from headrace.actors.learner.ranks.group import RankGroup

LEARNER_RANK = "learner_rank"
_ANSWER_TIMEOUT_S = 30.0
_PAUSE_S = 1.0


class RankLost(RuntimeError):
    """One of a learner's ranks ended: the others cannot go on without its part of the weights."""


async def meet_ranks(
    context: Context, threads: ComputeThreads, *, size: int, device: str, timeout_s: float
) -> RankGroup:
    """Rank 0's group of `size` ranks. Raises RankLost where they are not all here within `timeout_s`."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[int] = loop.create_future()

    def meet() -> RankGroup:
        import torch  # takes seconds

        from headrace.actors.learner.ranks.group import RankGroup, open_store

        store, port = open_store(context.host, size, timeout_s=timeout_s)
        loop.call_soon_threadsafe(opened.set_result, port)
        return RankGroup(store, rank=0, size=size, device=torch.device(device), host=context.host)

    async def ask(rank: int) -> None:
        message = JoinRanks(context.host, await opened, rank, size, context.incarnation, timeout_s)
        while True:
            try:
                await insist(
                    context, f"{LEARNER_RANK}/{rank - 1}", message, timeout_s=_ANSWER_TIMEOUT_S, patience_s=timeout_s
                )
            except (RemoteError, UnknownActor):  # it ends, its successor will have it; or it starts
                await context.clock.sleep(_PAUSE_S)
            else:
                return

    try:
        with context.activity.waiting(LEARNER_RANK, "all ranks"):
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
                meeting = tasks.create_task(threads.run("meet", meet))
                for rank in range(1, size):
                    tasks.create_task(ask(rank))
        return meeting.result()
    except (TimeoutError, ExceptionGroup) as error:
        why = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        raise RankLost(
            f"the {size - 1} processes of role {LEARNER_RANK} were not here within {timeout_s:g} s "
            f"({type(why).__name__}: {why}); learner.ranks_timeout_s sets the limit"
        ) from error
