"""The live members of a role, and a policy that picks one of them for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.transport import routing
from headrace.transport.errors import TransportError

if TYPE_CHECKING:
    from headrace.transport.context import Context


class Group:
    """Made by `context.group(role)`, one for each role of a context, so that its counts of asks in flight are whole.
    Without a live member `ask` and `tell` wait for one. A lost member's asks raise PeerLost; nothing is retried."""

    def __init__(self, context: Context, role: str, policy: routing.Policy = "least_outstanding") -> None:
        self.role = role
        self.policy = policy
        self._context = context
        self._turn = 0
        self._homes = routing.Homes()
        self._outstanding: dict[str, int] = {}

    def members(self) -> list[str]:
        """Names of the live members, in a fixed order (by index)."""
        return sorted(self._context._names.state.members(self.role), key=_by_index)

    def metadata(self, name: str) -> dict[str, object]:
        """What a live member announced; {} where it is gone."""
        record = self._context._names.state.find(name)
        return {} if record is None else record.metadata

    def outstanding(self, name: str) -> int:
        """Asks of this context in flight to that member."""
        return self._outstanding.get(name, 0)

    async def wait_for(self, num: int, *, timeout_s: float) -> list[str]:
        """Until `num` members live; returns them. Raises UnknownActor (a DeadlineExceeded)."""
        with self._context.activity.waiting(self.role, "a live member"):
            await self._context._names.wait_for(self.role, num, timeout_s)
        return self.members()

    def pick(self, key: str | None = None) -> str | None:
        """The member that the next message goes to; None where there is none. `key` makes it sticky
        (see `routing.Homes`)."""
        members = self.members()
        if not members:
            return None
        if key is not None:
            self._turn += 1
            return self._homes.pick(members, key, self.outstanding, self._turn - 1)
        self._turn += 1
        if self.policy == "round_robin":
            return routing.round_robin(members, self._turn - 1)
        return routing.least_outstanding(members, self.outstanding, self._turn - 1)

    async def ask(self, message: object, *, key: str | None = None, timeout_s: float) -> Any:
        """Ask one member. Raises what `context.ask` raises."""
        clock = self._context.clock
        began_s = clock.time()
        name = self.pick(key) or await self._first(key, timeout_s)
        self._outstanding[name] = self._outstanding.get(name, 0) + 1
        try:
            return await self._context.ask(name, message, timeout_s=max(0.0, timeout_s - (clock.time() - began_s)))
        finally:
            left = self._outstanding[name] - 1
            if left:
                self._outstanding[name] = left
            else:
                del self._outstanding[name]

    async def tell(self, message: object, *, key: str | None = None, timeout_s: float = 60.0) -> None:
        """Tell one member; waits for a member and for credit, at most `timeout_s` together."""
        clock = self._context.clock
        began_s = clock.time()
        name = self.pick(key) or await self._first(key, timeout_s)
        await self._context.tell(name, message, timeout_s=max(0.0, timeout_s - (clock.time() - began_s)))

    async def ask_all(self, message: object, *, timeout_s: float) -> dict[str, Any | TransportError]:
        """Ask every live member at once; a failure stands in the place of its reply."""

        async def one(name: str) -> Any | TransportError:
            try:
                return await self._context.ask(name, message, timeout_s=timeout_s)
            except TransportError as error:
                return error

        names = self.members()
        asks: list[Coroutine[Any, Any, Any]] = [one(name) for name in names]
        return dict(zip(names, await asyncio.gather(*asks), strict=True))

    async def _first(self, key: str | None, timeout_s: float) -> str:
        await self.wait_for(1, timeout_s=timeout_s)
        name = self.pick(key)
        assert name is not None
        return name


def _by_index(name: str) -> tuple[int, str]:
    index = name.partition("/")[2]
    return (int(index) if index.isdigit() else 0, name)
