"""The directory as actors: the service in the hosting runtime, and the agent that keeps every other runtime's copy.

The service applies what runtimes and the supervisor report and pushes each change to all; the agent applies changes
in order and takes a fresh snapshot where it missed one. Each heartbeat says how far its runtime's copy is, so that the
last change before a silence is missed for no longer than a beat.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.transport.actor import Actor, handles
from headrace.transport.directory import DirectoryState
from headrace.transport.errors import TransportError
from headrace.transport.insist import insist
from headrace.transport.mailbox import MailboxBound
from headrace.transport.names import Names
from headrace.transport.system import (
    ActorRecord,
    DirectoryChange,
    DirectoryRevision,
    DirectorySnapshot,
    Heartbeat,
    Leave,
    Register,
    Registered,
    Subscribe,
    Unregister,
)

DIRECTORY = "directory/0"
TRY_S = 10.0
"""An answer of the directory takes milliseconds: what stays out for so long was lost, and is asked for again."""

Push = Callable[[ActorRecord, DirectoryChange | DirectoryRevision], None]


def agent_name(incarnation: str) -> str:
    """The actor of a runtime that the directory talks to."""
    return f"runtime/{incarnation}"


def system_record(name: str, incarnation: str, address: str) -> ActorRecord:
    """A record for the runtime's own actors, which are in no directory."""
    return ActorRecord(name, incarnation, address, {}, 1 << 16, 1 << 30)


class DirectoryService(Actor):
    mailbox = MailboxBound(capacity=1 << 16)

    def __init__(self, *, names: Names, push: Push, silence_s: float) -> None:
        self._state = names.state
        self._names = names
        self._push = push
        self._silence_s = silence_s
        self._listened_s = 0.0
        self._subscribers: dict[str, ActorRecord] = {}
        self.on_silence: Callable[[str, str], None] | None = None
        """called with incarnation and reason for a process declared down for its silence: it may still be there"""
        self.lag_s: dict[str, float] = {}
        """last reported event-loop lag by incarnation"""

    def commit(self, changes: list[DirectoryChange]) -> None:
        """Tell this process and every subscriber of changes that the state holds."""
        for change in changes:
            # Before this process forgets the dead one: one that only was silent must hear that it counts as dead.
            for record in list(self._subscribers.values()):
                self._push(record, change)
            if change.dead_incarnation:
                self._subscribers.pop(change.dead_incarnation, None)
                self.lag_s.pop(change.dead_incarnation, None)
            self._names.announce(change)

    def process_down(self, incarnation: str, reason: str) -> None:
        """The supervisor saw the process die: everybody knows at once. Idempotent."""
        self.commit(self._state.process_down(incarnation, reason))

    def process_leaving(self, incarnation: str) -> None:
        """The supervisor wants the process to end in good order: nobody gives it new work, and it ends when it has
        none."""
        self.commit(self._state.process_leaving(incarnation))

    async def watch_silence(self, every_s: float) -> None:
        """Declare processes down that have been silent too long, for ever. Time in which this process itself stood
        still (stopped in a terminal, starved) hardly counts: the heartbeats of that time are still unread."""
        clock = self.context.clock
        while True:
            began_s = clock.time()
            await clock.sleep(every_s)
            self._listened_s += min(clock.time() - began_s, 2 * every_s)
            changes = self._state.expire(self._listened_s, self._silence_s)
            self.commit(changes)
            for change in changes:
                if change.dead_incarnation and self.on_silence is not None:
                    self.on_silence(change.dead_incarnation, change.reason)

    @handles(Subscribe)
    async def subscribe(self, message: Subscribe) -> DirectorySnapshot:
        agent = system_record(agent_name(message.incarnation), message.incarnation, message.address)
        if self._state.death_of(message.incarnation) is None:
            self._subscribers[message.incarnation] = agent
            self._state.heartbeat(message.incarnation, self._listened_s)
        return self._state.snapshot()

    @handles(Register)
    async def register(self, message: Register) -> Registered:
        self.commit(self._state.register(message.actor))
        return Registered(self._state.revision)

    @handles(Unregister)
    async def unregister(self, message: Unregister) -> Registered:
        self.commit(self._state.unregister(message.name, message.incarnation, message.reason))
        return Registered(self._state.revision)

    @handles(Leave)
    async def leave(self, message: Leave) -> None:
        self.process_down(message.incarnation, message.reason)

    @handles(Heartbeat)
    async def heartbeat(self, message: Heartbeat) -> None:
        self._state.heartbeat(message.incarnation, self._listened_s)
        self.lag_s[message.incarnation] = message.lag_s
        record = self._subscribers.get(message.incarnation)
        if record is not None and message.revision < self._state.revision:
            self._push(record, DirectoryRevision(self._state.revision))


class RuntimeAgent(Actor):
    """Every runtime has one: it receives the directory's changes, and it is the name under which code outside of
    actors asks."""

    mailbox = MailboxBound(capacity=1 << 16)

    def __init__(self, *, names: Names, address: str) -> None:
        self._names = names
        self._address = address
        self._early: list[DirectoryChange] = []
        self._joined = False

    async def beat(self, every_s: float) -> None:
        """Tell the directory for ever that this event loop turns, and how late it was."""
        clock = self.context.clock
        lag_s = 0.0
        while True:
            beat = Heartbeat(self.context.incarnation, lag_s, self._names.state.revision)
            self.context.tell_soon(DIRECTORY, beat)
            began_s = clock.time()
            await clock.sleep(every_s)
            lag_s = max(0.0, clock.time() - began_s - every_s)

    async def join(self, timeout_s: float, *, final: tuple[type[TransportError], ...] = ()) -> None:
        """Subscribe and take the snapshot over. Raises TransportError after `timeout_s` without an answer; what is
        `final` at once."""
        self._joined = False
        request = Subscribe(self.context.incarnation, self._address)
        snapshot: DirectorySnapshot = await insist(
            self.context,
            DIRECTORY,
            request,
            timeout_s=min(TRY_S, timeout_s),
            patience_s=timeout_s - TRY_S,
            final=final,
        )
        state: DirectoryState = self._names.state
        for change in list(state.difference(snapshot)):
            self._take(change)
        self._joined = True
        early, self._early = self._early, []
        for change in early:
            await self.change(change)

    @handles(DirectoryChange)
    async def change(self, message: DirectoryChange) -> None:
        revision = self._names.state.revision
        if not self._joined:
            self._early.append(message)
        elif message.revision == revision + 1:
            self._take(message)
        elif message.revision > revision:
            self._early.append(message)
            self._rejoin()

    @handles(DirectoryRevision)
    async def revision(self, message: DirectoryRevision) -> None:
        """What this copy still lacks was lost: it came before this message or not at all."""
        if self._joined and message.revision > self._names.state.revision:
            self._rejoin()

    def _rejoin(self) -> None:
        self._joined = False
        self.context.spawn(self.join(60.0), "rejoin")

    def _take(self, change: DirectoryChange) -> None:
        self._names.state.apply(change)
        self._names.announce(change)
