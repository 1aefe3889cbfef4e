"""A runtime's copy of the directory, with what waits on it: lookups with a deadline, and listeners told of each
change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.transport.clock import Clock
from headrace.transport.deadlines import Deadlines, check_timeout
from headrace.transport.directory import DirectoryState
from headrace.transport.errors import TransportError, UnknownActor
from headrace.transport.system import ActorRecord, DirectoryChange

Listener = Callable[[DirectoryChange], None]


class Names:
    def __init__(self, state: DirectoryState, clock: Clock, deadlines: Deadlines) -> None:
        self.state = state
        self._clock = clock
        self._deadlines = deadlines
        self._listeners: list[Listener] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._stopped: Callable[[], TransportError] | None = None

    def stop(self, error: Callable[[], TransportError]) -> None:
        """Nobody appears any more: what waits, and what would, ends with that error."""
        self._stopped = error
        self._wake()

    def listen(self, listener: Listener) -> None:
        """`listener` is called with each change from now on, after the state has it, in the order of the directory."""
        self._listeners.append(listener)

    def announce(self, change: DirectoryChange) -> None:
        """Tell listeners and waiters of a change that the state already holds."""
        for listener in list(self._listeners):
            listener(change)
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def find(self, name: str, timeout_s: float) -> ActorRecord:
        """The live actor of that name. Raises UnknownActor where none appears in time."""

        def found() -> bool:
            return self.state.find(name) is not None

        if not await self._until(found, timeout_s):
            known = ", ".join(self.state.names()) or "none"
            raise UnknownActor(f"no actor {name!r} appeared within {timeout_s:g} s; known actors: {known}")
        record = self.state.find(name)
        assert record is not None
        return record

    async def wait_for(self, role: str, num: int, timeout_s: float) -> None:
        """Until the role has `num` live members. Raises UnknownActor."""

        def enough() -> bool:
            return len(self.state.members(role)) >= num

        if not await self._until(enough, timeout_s):
            members = ", ".join(self.state.members(role)) or "none"
            raise UnknownActor(
                f"role {role!r} did not reach {num} members within {timeout_s:g} s; its members: {members}; "
                f"known actors: {', '.join(self.state.names()) or 'none'}"
            )

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        check_timeout(timeout_s)
        when_s = self._clock.time() + timeout_s
        while not condition():
            if self._stopped is not None:
                raise self._stopped()
            if self._clock.time() >= when_s:
                return False
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            deadline = self._deadlines.at(when_s, lambda w=waiter: w.done() or w.set_result(None))  # type: ignore[misc]
            try:
                await waiter
            finally:
                self._deadlines.cancel(deadline)
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True
