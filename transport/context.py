"""What an actor (or code beside actors) can do: ask, tell, stream, groups, watches, background tasks, time
accounting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.transport.activity import Activity
from headrace.transport.cell import ActorCell
from headrace.transport.clock import Clock
from headrace.transport.directory import full_name, role_of
from headrace.transport.group import Group
from headrace.transport.names import Names
from headrace.transport.network import LOOPBACK

if TYPE_CHECKING:
    from headrace.transport.outbound import Outbound

T = TypeVar("T")


class Context:
    def __init__(
        self,
        cell: ActorCell,
        clock: Clock,
        names: Names,
        outbound: Outbound,
        watch: Callable[[str], None],
        *,
        node: str = "",
        host: str = LOOPBACK,
    ) -> None:
        self.name = cell.name
        self.role = role_of(cell.name)
        index = cell.name.partition("/")[2]
        self.index = int(index) if index.isdigit() else 0
        self.incarnation = cell.incarnation
        self.node = node
        self.host = host
        self.clock = clock
        self.activity: Activity = cell.activity
        self._cell = cell
        self._names = names
        self._outbound = outbound
        self._watch = watch
        self._groups: dict[str, Group] = {}

    @property
    def leaving(self) -> bool:
        """Whether this process is to end when it has no work any more: it takes no new one."""
        return self._names.state.is_leaving(self.incarnation)

    def ask(self, to: str, message: object, *, timeout_s: float) -> Coroutine[Any, Any, Any]:
        """One reply. Raises DeadlineExceeded, PeerLost, Refused, RemoteError or BadMessage; waits for a name that is
        not there yet (UnknownActor at the deadline). Cancelling it cancels the peer's concurrent handler."""
        return self._outbound.ask(self.activity, full_name(to), message, timeout_s)

    def tell(self, to: str, message: object, *, timeout_s: float = 60.0) -> Coroutine[Any, Any, None]:
        """No reply. Waits for credit for at most `timeout_s` (DeadlineExceeded); raises PeerLost where the peer goes
        while it waits and UnknownActor where it never came."""
        return self._outbound.tell(self.activity, full_name(to), message, timeout_s)

    def tell_soon(self, to: str, message: object) -> bool:
        """Fire and forget, never waits: False, and counted, where the peer is absent or has no credit."""
        return self._outbound.tell_soon(full_name(to), message)

    def stream(self, to: str, message: object, *, timeout_s: float) -> AsyncGenerator[Any, None]:
        """Many replies; `timeout_s` is for each. Raises as `ask`. Leaving the loop early: `aclose()` it (or
        `contextlib.aclosing`), which cancels the peer's handler at once."""
        return self._outbound.stream(self.activity, full_name(to), message, timeout_s)

    def group(self, role: str) -> Group:
        """The live members of a role; the same object each time."""
        group = self._groups.get(role)
        if group is None:
            group = self._groups[role] = Group(self, role)
        return group

    def everybody(self) -> list[str]:
        """The names of all live actors."""
        return self._names.state.names()

    def watch(self, role: str) -> None:
        """From now on `PeerUp` and `PeerDown` of that role reach this actor's handlers; first a PeerUp for each
        present."""
        self._watch(role)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A background task, kept referenced; an exception in it fails the actor and so the process."""
        return self._cell.spawn(coroutine, name)

    async def run_blocking(
        self, function: Callable[..., T], *args: Any, label: str | None = None, executor: Executor | None = None
    ) -> T:
        """Run `function(*args)` in a thread, of `executor` where it matters in which; the time counts as busy.
        Cancelling does not stop the thread."""
        with self.activity.working(label or str(getattr(function, "__name__", "blocking"))):
            return await asyncio.get_running_loop().run_in_executor(executor, function, *args)
