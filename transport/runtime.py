"""One process's runtime: it hosts actors, delivers between them, and joins the processes through a network and a
directory.

runtime = Runtime(network)                       # this one hosts the directory
other = Runtime(network, directory=runtime.address)
await runtime.start(); context = await runtime.add(Greeter(), "greeter/0")
await runtime.failed                             # raises ActorFailed where an actor fails
await runtime.left                               # done when it was asked to leave in mid-run and has no work any more
await runtime.stop()
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
import traceback
from typing import Any, NoReturn

from headrace.transport.activity import Activity, step_name
from headrace.transport.actor import Actor
from headrace.transport.calls import Calls
from headrace.transport.cell import ActorCell
from headrace.transport.clock import Clock, LoopClock, MonotonicClock
from headrace.transport.codec import round_trip
from headrace.transport.context import Context
from headrace.transport.deadlines import Deadlines
from headrace.transport.directory import DirectoryState, full_name
from headrace.transport.directory_service import (
    DIRECTORY,
    TRY_S,
    DirectoryService,
    RuntimeAgent,
    agent_name,
    system_record,
)
from headrace.transport.errors import ActorFailed, HandshakeFailed, RuntimeStopped, TransportError, describe
from headrace.transport.forks import disown_in_forked_children
from headrace.transport.insist import insist
from headrace.transport.leaving import until_idle
from headrace.transport.links import Links
from headrace.transport.loopback import LoopbackNetwork
from headrace.transport.names import Names
from headrace.transport.network import DEFAULT_MAX_MESSAGE_BYTES, Address, Network
from headrace.transport.outbound import Outbound
from headrace.transport.system import (
    ActivityQuery,
    ActorRecord,
    DirectoryChange,
    DirectoryRevision,
    Leave,
    PeerLeaving,
    Register,
    Unregister,
    WaitQuery,
)
from headrace.transport.virtual import VirtualTimeLoop
from headrace.transport.waits import activity_snapshot, wait_report
from headrace.transport.watchdog import DEFAULT_WARN_S, Watchdog, check_warn_s
from headrace.transport.watchers import Watchers, came

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 60.0
LEAVE_TIMEOUT_S = 2.0
FLUSH_S = 1.0
_REST_EVERY_S = 30.0


class Runtime:
    """`directory`: the address (text) of the runtime that hosts it; None hosts it here. `incarnation`: a fresh random
    name of this process, made here unless the launcher gives one (to report the death of what it started).
    `encode_local` passes messages between actors of this runtime through the codec too. `silence_s`: without a
    heartbeat for that long the directory declares a process dead. `lag_warn_s`: a handler that holds the event loop
    longer is named in the log (in real time only). `node`: what its actors read as the name of their host (several may
    be played by one). Raises ValueError."""

    def __init__(
        self,
        network: Network | None = None,
        clock: Clock | None = None,
        *,
        directory: Address | str | None = None,
        incarnation: str | None = None,
        encode_local: bool = False,
        silence_s: float = 30.0,
        lag_warn_s: float = DEFAULT_WARN_S,
        node: str = "",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self.incarnation = incarnation or secrets.token_hex(8)
        self._network: Network = network or LoopbackNetwork()
        self._given_clock = clock
        self.node = node
        self._directory_address = None if directory is None else str(directory)
        self._encode_local = encode_local
        self._silence_s = silence_s
        check_warn_s(lag_warn_s)
        self._lag_warn_s = lag_warn_s
        self._watchdog: Watchdog | None = None
        self._max_message_bytes = max_message_bytes
        self._service: DirectoryService | None = None
        self._cells: dict[str, ActorCell] = {}
        self._contexts: dict[str, Context] = {}
        self._watchers = Watchers()
        self._closing: set[asyncio.Task[Any]] = set()
        self._started = self._stopped = self._directory_silent = False

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the network, join (or open) the directory. Raises TransportError where the network cannot be opened,
        DeadlineExceeded where the directory does not answer, HandshakeFailed at once where it is none of this run."""
        if self._started:
            raise RuntimeError("this Runtime was started before; make a new one")
        self._started = True
        loop = asyncio.get_running_loop()
        self.clock: Clock = self._given_clock or (
            LoopClock() if isinstance(loop, VirtualTimeLoop) else MonotonicClock()
        )
        if not isinstance(loop, VirtualTimeLoop):
            self._watchdog = Watchdog(loop, self._running_step, warn_s=self._lag_warn_s)
            self._watchdog.start()
        self.failed: asyncio.Future[NoReturn] = loop.create_future()
        self.left: asyncio.Future[None] = loop.create_future()
        self._deadlines = Deadlines(loop, self.clock)
        self._names = Names(DirectoryState(), self.clock, self._deadlines)
        self._calls = Calls(loop, self._deadlines)
        self._links = Links(
            clock=self.clock, calls=self._calls, cells=self._cells, max_message_bytes=self._max_message_bytes
        )
        self._outbound = Outbound(
            incarnation=self.incarnation,
            clock=self.clock,
            deadlines=self._deadlines,
            names=self._names,
            calls=self._calls,
            links=self._links,
            cells=self._cells,
            copy=round_trip if self._encode_local else None,
        )
        self._names.listen(self._on_change)
        disown_in_forked_children(self)
        try:
            port = await self._network.open(self.incarnation, self._links.receive, self._links.unreachable)
        except BaseException:
            self._end_watch()
            self._stopped = True  # nothing is open that `stop` could close
            raise
        self._links.attach(port)
        self.address = port.address
        self._agent = RuntimeAgent(names=self._names, address=str(self.address))
        agent = self._host(self._agent, agent_name(self.incarnation))
        heartbeat_s = self._network.heartbeat_s
        if self._directory_address is not None:
            directory = Address.parse(self._directory_address)
            self._names.state.pin(system_record(DIRECTORY, directory.incarnation, self._directory_address))
            # A directory has no successor: one of other keys will not become ours.
            await self._agent.join(JOIN_TIMEOUT_S, final=(HandshakeFailed,))
            if heartbeat_s is not None:
                agent.spawn(self._agent.beat(heartbeat_s), "heartbeat")
                agent.spawn(self._rest_links(), "idle links")
            return
        self._service = DirectoryService(names=self._names, push=self._push, silence_s=self._silence_s)
        service = self._host(self._service, DIRECTORY)
        if heartbeat_s is not None:
            service.spawn(self._service.watch_silence(heartbeat_s), "silence")
            agent.spawn(self._rest_links(), "idle links")

    @property
    def context(self) -> Context:
        """For code beside actors (launcher, tests): it asks and tells under the runtime's own name."""
        return self._contexts[agent_name(self.incarnation)]

    @property
    def directory(self) -> DirectoryService:
        """The directory's service, in the runtime that hosts it: `directory.process_down(incarnation, reason)`."""
        if self._service is None:
            raise TransportError(f"the directory is hosted by {self._directory_address}, not by this runtime")
        return self._service

    async def add(self, actor: Actor, name: str) -> Context:
        """Host `actor` as `name` ("role/index"): on_start, then it is announced and handles messages. Raises
        ActorFailed with the traceback where on_start raises."""
        name = full_name(name)
        if name in self._cells:
            raise ValueError(f"this runtime already hosts {name!r}; give each actor its own index")
        cell, context = self._prepare(actor, name)
        try:
            await cell.timed(actor.on_start(context), f"{name}:on_start")
        except Exception as error:
            self._fail(cell, error)
            raise self.failure(cell, error) from error
        if cell.failed is not None:  # a task that on_start spawned
            raise self.failure(cell, cell.failed) from cell.failed
        cell.start()
        bound = actor.mailbox
        record = ActorRecord(
            name, self.incarnation, str(self.address), actor.metadata(), bound.capacity, bound.window_bytes
        )
        await self._register(record)
        return context

    async def stop(self, *, reason: str = "stopped", grace_s: float = 5.0) -> None:
        """Stop the actors, the last added first: on_stop, at most `grace_s` each, then their tasks end. Idempotent."""
        if not self._started or self._stopped:
            return
        self._stopped = True
        for cell in reversed([cell for cell in self._cells.values() if not self._is_own(cell)]):
            await self._stop_actor(cell, reason, grace_s)
        if self._service is None:
            self.context.tell_soon(DIRECTORY, Leave(self.incarnation, reason))
        self._outbound.stopped = _stopped
        self._names.stop(_stopped)
        self._calls.fail_all(_stopped)
        for cell in list(self._cells.values()):
            await cell.close(reason)
        await self._links.close(FLUSH_S)
        for task in list(self._closing):
            task.cancel()
        self._deadlines.close()
        self._end_watch()

    def disown(self) -> None:
        """In a forked child: the sockets, the event loop and the actors are the parent's."""
        self._stopped = True
        for cell in self._cells.values():
            cell.activity.on_next_end(functools.partial(_leave, cell.name))
        self._links.disown()
        self._outbound.stopped = lambda: RuntimeStopped(
            "this process was forked from the one whose runtime this is; start processes with spawn"
        )

    # --- hosting ----------------------------------------------------------------------------------------------------

    def _prepare(self, actor: Actor, name: str) -> tuple[ActorCell, Context]:
        cell = ActorCell(
            actor,
            name,
            self.incarnation,
            self.clock,
            self._fail,
            answers={
                ActivityQuery: activity_snapshot,
                WaitQuery: lambda cell: wait_report(cell, self.clock.time(), self._outbound.takes),
            },
            activity=Activity(
                self.clock.time,
                lambda label, took_s: self._slow_step(step_name(name, label), took_s),
                self._lag_warn_s,
            ),
        )
        watch = functools.partial(self._watch, cell)
        host = self.address.host
        context = Context(cell, self.clock, self._names, self._outbound, watch, node=self.node, host=host)
        actor._context = context
        self._cells[name] = cell
        self._contexts[name] = context
        return cell, context

    def _host(self, actor: Actor, name: str) -> Context:
        """One of the runtime's own actors: known to this process only."""
        cell, context = self._prepare(actor, name)
        self._names.state.pin(system_record(name, self.incarnation, str(self.address)))
        cell.start()
        return context

    async def _register(self, record: ActorRecord) -> None:
        if self._service is not None:
            self._service.commit(self._names.state.register(record))
            return
        await insist(self.context, DIRECTORY, Register(record), timeout_s=TRY_S, patience_s=JOIN_TIMEOUT_S - TRY_S)
        await self._names.find(record.name, JOIN_TIMEOUT_S)

    async def _unregister(self, name: str, reason: str) -> None:
        if self._service is not None:
            self._service.commit(self._names.state.unregister(name, self.incarnation, reason))
            return
        if self._directory_silent:
            return
        try:
            await self.context.ask(DIRECTORY, Unregister(name, self.incarnation, reason), timeout_s=LEAVE_TIMEOUT_S)
        except TransportError as error:
            self._directory_silent = self._stopped  # it does not hold up the end of each actor
            logger.warning("%s could not be taken out of the directory: %s", name, error)

    def _push(self, record: ActorRecord, news: DirectoryChange | DirectoryRevision) -> None:
        try:
            self._links.tell(record, news, system=True)
        except TransportError as error:
            logger.warning("the directory's revision %d did not reach %s: %s", news.revision, record.name, error)

    async def _stop_actor(self, cell: ActorCell, reason: str, grace_s: float) -> None:
        stopping = asyncio.ensure_future(cell.timed(cell.actor.on_stop(), f"{cell.name}:on_stop"))
        done, _ = await asyncio.wait((stopping,), timeout=grace_s)
        if not done:
            logger.warning("%s: on_stop did not end within %g s", cell.name, grace_s)
            stopping.cancel()
        elif stopping.exception() is not None:
            logger.error("%s: on_stop raised", cell.name, exc_info=stopping.exception())
        await self._remove(cell, reason)

    async def _remove(self, cell: ActorCell, reason: str) -> None:
        if not self._is_own(cell):
            await self._unregister(cell.name, reason)
        self._watchers.remove(cell)
        await cell.close(reason)
        self._cells.pop(cell.name, None)
        self._contexts.pop(cell.name, None)

    def _is_own(self, cell: ActorCell) -> bool:
        return cell.actor is self._service or cell.actor is self._agent

    async def _rest_links(self) -> None:
        while True:
            await self.clock.sleep(_REST_EVERY_S)
            self._links.rest(members=self._names.state.incarnations())

    # --- the event loop -----------------------------------------------------------------------------------------------

    def _running_step(self) -> str | None:
        """Called from the watchdog's thread, while the loop stands still in that step."""
        for cell in list(self._cells.values()):
            label = cell.activity.step
            if label is not None:
                return step_name(cell.name, label)
        return None

    def _end_watch(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()

    def _slow_step(self, name: str, took_s: float) -> None:
        if self._watchdog is not None:
            self._watchdog.slow_step(name, took_s)

    # --- failing ----------------------------------------------------------------------------------------------------

    @staticmethod
    def failure(cell: ActorCell, error: BaseException) -> ActorFailed:
        text = "".join(traceback.format_exception(error))
        return ActorFailed(f"{cell.name} failed: {describe(error)}\n{text}")

    def _fail(self, cell: ActorCell, error: BaseException) -> None:
        cell.failed = cell.failed or error
        failure = self.failure(cell, error)
        logger.error("%s", failure)
        self._fail_process(failure)
        reason = f"failed: {describe(error)}"
        task = asyncio.get_running_loop().create_task(self._remove(cell, reason[:500]), name=f"{cell.name}:remove")
        self._closing.add(task)
        task.add_done_callback(self._removed)

    def _removed(self, task: asyncio.Task[Any]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s did not end in good order", task.get_name(), exc_info=task.exception())

    def _fail_process(self, failure: TransportError) -> None:
        if not self.failed.done():
            self.failed.set_exception(failure)
            self.failed.exception()  # whether anybody awaits it is the process's affair, not a warning

    # --- the directory's news ---------------------------------------------------------------------------------------

    def _on_change(self, change: DirectoryChange) -> None:
        if change.up is not None:
            self._watchers.inform(came(change.up))
        if change.down is not None:
            down = change.down
            self._calls.lose(down.incarnation, down.reason, down.name)
            self._links.forget_actor(down.name, down.incarnation)
            self._watchers.inform(down)
        if change.leaving:
            for record in self._names.state.of_process(change.leaving):
                self._watchers.inform(PeerLeaving(record.name, record.incarnation))
            if change.leaving == self.incarnation:
                self.context.spawn(self._leave(), "leave")
        if change.dead_incarnation:
            self._calls.lose(change.dead_incarnation, change.reason)
            self._links.forget(change.dead_incarnation)
            if change.dead_incarnation == self.incarnation and not self._stopped:
                self._fail_process(RuntimeStopped(f"the directory declared this process dead: {change.reason}"))

    async def _leave(self) -> None:
        """Wait for the end of what the actors have in hand; whoever owns this runtime then stops it. Nobody finds them
        any more before that: their on_stop may take long, and they would refuse what comes meanwhile."""
        cells = [cell for cell in self._cells.values() if not self._is_own(cell)]
        await until_idle(cells, self.clock)
        for cell in cells:
            await self._unregister(cell.name, "it left the run")
        if not self.left.done():
            self.left.set_result(None)

    def _watch(self, cell: ActorCell, role: str) -> None:
        self._watchers.add(cell, role, self._names.state.members(role).values())


def _leave(name: str) -> NoReturn:
    """A handler forked, and its child comes back to an event loop, and sockets, that are its parent's."""
    logger.error("%s: a forked child came back from its handler: it ends here; start processes with spawn", name)
    logging.shutdown()
    os._exit(1)


def _stopped() -> RuntimeStopped:
    return RuntimeStopped("this runtime has stopped")
