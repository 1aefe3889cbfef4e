"""The generator in a collective broadcast: its engine's workers join groups, and leave them, while it serves. Handlers
only; what a worker does is in the engine's `ranks` (group_ranks.py, vllm_group.py).
"""

from __future__ import annotations

from headrace.actors.generator.engine import CollectiveEngine, Engine, EngineDied
from headrace.actors.messages import AbortGroup, GatherGroup, GroupAborted, GroupJoined, GroupReady, JoinGroup
from headrace.transport import Actor, handles


class GroupMember(Actor):
    """To be derived from; `_engine` is the generator's."""

    _engine: Engine

    @property
    def collective_engine(self) -> CollectiveEngine:
        if not isinstance(self._engine, CollectiveEngine):
            raise ValueError(f"{type(self._engine).__name__} takes part in no broadcast; use weights=shm, for example")
        return self._engine

    def engine_died(self, error: EngineDied) -> None:
        """End the actor: its supervisor starts another."""
        raise NotImplementedError

    async def until_idle(self) -> None:
        """Until no update is under way."""
        raise NotImplementedError

    @handles(GatherGroup, concurrent=True)
    async def gather(self, message: GatherGroup) -> GroupReady:
        """Raises where a worker does not answer. One that is still busy with an earlier update, for which nobody waits
        any more, is not there: the others must not wait for it in a collective."""
        await self.until_idle()
        engine = self.collective_engine
        try:
            num_ranks = await engine.ranks.count()
        except EngineDied as error:
            self.engine_died(error)
            raise
        return GroupReady(num_ranks, engine.version, engine.ranks.kind)

    @handles(JoinGroup, concurrent=True)
    async def join_group(self, message: JoinGroup) -> GroupJoined:
        """Raises GroupBroken at the deadline, or where it is aborted. Not one of the updates, which wait for each
        other: an abort ends it, and the next group may be joined at once."""
        try:
            await self.collective_engine.ranks.join(message)
        except EngineDied as error:
            self.engine_died(error)
            raise
        return GroupJoined(message.group)

    @handles(AbortGroup, concurrent=True)
    async def abort_group(self, message: AbortGroup) -> GroupAborted:
        return GroupAborted(await self.collective_engine.ranks.abort(message.group))
