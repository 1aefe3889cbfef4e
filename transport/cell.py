"""One actor as its runtime hosts it: the mailbox, the task that empties it, the tasks of concurrent handlers.

A background task that raises fails the actor. Called by the runtime and the links; what a handler does to its asker is
`handling.py`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from headrace.transport.activity import Activity
from headrace.transport.actor import Actor, HandlerSpec
from headrace.transport.clock import Clock
from headrace.transport.errors import NotHandled, PeerLost, Refused, TransportError
from headrace.transport.first_step import FirstStep
from headrace.transport.handling import Delivery, Handling
from headrace.transport.mailbox import Mailbox
from headrace.transport.system import QUERIES, DirectoryChange

logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 5.0
"""How long the tasks of an actor that stops may go on after they were cancelled; then nobody waits for them."""

_FAIRNESS_BUDGET = 128
"""Messages that one mailbox handles before it lets the others of its event loop go on."""
_TURN_S = 0.02
"""How long a mailbox handles before the event loop reads what has come meanwhile: that nobody waits any more for what
comes next, for example."""


class ActorCell:
    def __init__(
        self,
        actor: Actor,
        name: str,
        incarnation: str,
        clock: Clock,
        on_failed: Callable[[ActorCell, BaseException], None],
        *,
        answers: Mapping[type, Callable[[ActorCell], object]],
        activity: Activity,
    ) -> None:
        """`answers`: what the runtime says to each of its own queries."""
        self.actor = actor
        self.name = name
        self.incarnation = incarnation
        self.bound = actor.mailbox
        self.mailbox: Mailbox[Delivery] = Mailbox(actor.mailbox, evictable=_evictable)
        self.activity = activity
        self._handling = Handling(actor, name, activity)
        self._now = clock.time
        self._answers = answers
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their begin: they end in the same each time
        self._serial: Delivery | None = None
        self._concurrent: set[Delivery] = set()
        self._running: dict[str, int] = {}
        self._backlogs: dict[str, deque[Delivery]] = {}
        self._wake: asyncio.Future[None] | None = None
        self._mailbox_task: asyncio.Task[None] | None = None
        self._mailbox_context = contextvars.copy_context()
        self._begun: tuple[FirstStep, Delivery] | None = None
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._closed: str | None = None
        self.failed: BaseException | None = None

    # --- arriving ---------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery, *, system: bool = False, alone: bool = False) -> None:
        """Put a message into the mailbox under its policy. Never waits; refusals go to the asker. `alone`: nothing else
        has arrived with it, so that an actor that waits may handle it in this turn of the loop."""
        if self._closed is not None:
            self._turn_away(delivery, PeerLost.of(self.name, self.incarnation, self._closed))
            return
        cls = type(delivery.message)
        if cls not in self.actor.handlers:
            if cls in QUERIES:
                if delivery.port is not None:
                    delivery.port.reply(self._answers[cls](self))
                delivery.released()
                return
            known = ", ".join(sorted(c.__name__ for c in self.actor.handlers)) or "nothing"
            self._turn_away(delivery, NotHandled(f"{self.name} does not handle {cls.__qualname__}; it handles {known}"))
            return
        delivery.since_s = self._now()
        taken, evicted = self.mailbox.offer(delivery, system=system)
        if not taken:
            full = f"its mailbox is full ({self.bound.capacity} messages)"
            self._turn_away(delivery, Refused(f"{self.name} refused it: {full}"))
            return
        if evicted is not None:
            full = f"its mailbox is full ({self.bound.capacity})"
            self._turn_away(evicted, Refused(f"{self.name} dropped it for a newer one: {full}"))
        if self._wake is None or self._wake.done():
            return
        if not alone or not self._handle_at_once():
            self._wake.set_result(None)

    @property
    def has_room(self) -> bool:
        """Whether a sender of this process may deliver without waiting."""
        mailbox = self.mailbox
        return (mailbox.has_room and not self._room_waiters) or mailbox.bound.overflow != "block"

    @property
    def admits(self) -> bool:
        """Whether one that has waited may deliver now (what is delivered to a closed cell is turned away)."""
        return self._closed is not None or self.mailbox.has_room

    async def room(self) -> None:
        """Wait, first come first served, until the mailbox has room."""
        while self._closed is None and not self.mailbox.has_room:
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._offer_room()  # the place that was meant for this sender goes to the next
                raise
            finally:
                if waiter in self._room_waiters:
                    self._room_waiters.remove(waiter)

    def handling(self) -> list[tuple[Delivery, asyncio.Task[Any]]]:
        """The messages that handlers work on, the oldest first, each with its task."""
        running = [(delivery, delivery.task) for delivery in self._concurrent]
        if self._serial is not None:
            running.append((self._serial, self._mailbox_task))
        return sorted(
            ((delivery, task) for delivery, task in running if task is not None), key=lambda pair: pair[0].since_s
        )

    def background_tasks(self) -> list[asyncio.Task[Any]]:
        """Those that `spawn` began, by name."""
        own = {self._mailbox_task, *(delivery.task for delivery in self._concurrent)}
        return sorted(self._tasks.keys() - own, key=lambda task: task.get_name())

    # --- running ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to handle messages."""
        self._mailbox_task = self._loop.create_task(
            self._run(), name=f"{self.name}:mailbox", context=self._mailbox_context
        )
        self._keep(self._mailbox_task)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A background task of the actor; an exception in it fails the actor."""
        label = f"{self.name}:{name}"
        task = self._loop.create_task(self.timed(coroutine, label), name=label)
        self._keep(task)
        task.add_done_callback(lambda _: coroutine.close())  # one that was cancelled before its first step
        return task

    async def timed(self, coroutine: Coroutine[Any, Any, Any], label: str) -> Any:
        """Await one of the actor's coroutines with its steps counted as busy."""
        return await self.activity.drive(coroutine, label)

    async def close(self, reason: str) -> None:
        """End every task; what waits in the mailbox is turned away. Idempotent."""
        if self._closed is not None:
            return
        self._closed = self._handling.ending = reason
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, alive = await asyncio.wait(tasks, timeout=CANCEL_GRACE_S)
            for task in alive:
                logger.warning("%s ignores its cancellation and is left behind", task.get_name())
        rest = self.mailbox.drain()
        for backlog in self._backlogs.values():
            for delivery in backlog:
                self.mailbox.done(cancelled=True)
                rest.append(delivery)
        for delivery in rest:
            self._turn_away(delivery, PeerLost.of(self.name, self.incarnation, reason))
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _run(self) -> None:
        mailbox, handlers = self.mailbox, self.actor.handlers
        budget, turned_s = _FAIRNESS_BUDGET, self._now()
        while True:
            delivery = mailbox.take()
            if delivery is None:
                await self._wait()
                budget, turned_s = _FAIRNESS_BUDGET, self._now()
                continue
            if delivery.cancelled:
                self._finished(delivery)
                continue
            spec = handlers[type(delivery.message)]
            if spec.concurrent:
                self._begin(delivery, spec)
            else:
                self._serial = delivery
                try:
                    await self._handling.handle(delivery, spec)
                finally:
                    self._serial = None
                    self._finished(delivery)
            budget -= 1
            if budget == 0 or self._now() - turned_s > _TURN_S:
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # the first turn runs this task before what it has read
                budget, turned_s = _FAIRNESS_BUDGET, self._now()

    async def _wait(self) -> None:
        """Until there is a message; finishes what was begun at its arrival."""
        self._wake = self._loop.create_future()
        cancelled = None
        try:
            await self._wake
        except asyncio.CancelledError as error:
            if self._begun is None:
                raise
            cancelled = error
        self._wake = None
        if self._begun is not None:
            (step, delivery), self._begun = self._begun, None
            try:
                if step.error is not None:
                    raise step.error
                await step.rest(cancelled)
            finally:
                self._serial = None
                self._finished(delivery)

    def _handle_at_once(self) -> bool:
        """Handle the only message now rather than in a turn of the mailbox's task."""
        if self._mailbox_task is None:
            return False
        if asyncio.current_task(self._loop) is not None:  # it comes from this process
            return False
        delivery = self.mailbox.take()
        assert delivery is not None
        spec = self.actor.handlers[type(delivery.message)]
        if spec.concurrent:
            self._begin(delivery, spec)
            return True
        self._serial = delivery
        step = FirstStep(self._handling.handle(delivery, spec), self._mailbox_task, self._mailbox_context)
        if step.finished and step.error is None:
            self._serial = None
            self._finished(delivery)
            return True
        self._begun = step, delivery
        return False

    def _begin(self, delivery: Delivery, spec: HandlerSpec) -> None:
        running = self._running.get(spec.method, 0)
        if spec.limit is not None and running >= spec.limit:
            self._backlogs.setdefault(spec.method, deque()).append(delivery)
            return
        self._running[spec.method] = running + 1
        task = self._loop.create_task(self._handling.handle(delivery, spec), name=f"{self.name}:{spec.method}")
        delivery.task = task
        self._concurrent.add(delivery)
        self._keep(task)
        task.add_done_callback(lambda _: self._concurrent_done(delivery, spec))

    def _concurrent_done(self, delivery: Delivery, spec: HandlerSpec) -> None:
        self._concurrent.discard(delivery)
        self._finished(delivery)
        self._running[spec.method] -= 1
        backlog = self._backlogs.get(spec.method)
        while backlog and self._closed is None:
            following = backlog.popleft()
            if following.cancelled:
                self._finished(following)
                continue
            self._begin(following, spec)
            break

    # --- ending -----------------------------------------------------------------------------------------------------

    def _finished(self, delivery: Delivery) -> None:
        self.mailbox.done(cancelled=delivery.cancelled)
        delivery.released()
        if self._room_waiters:
            self._offer_room()

    def _offer_room(self) -> None:
        while self._room_waiters and self.mailbox.has_room:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _turn_away(self, delivery: Delivery, error: TransportError) -> None:
        if delivery.port is not None:
            delivery.port.fail(error)
        else:
            # Who stops needs no news of who came and went.
            level = logging.DEBUG if isinstance(delivery.message, DirectoryChange) else logging.WARNING
            logger.log(level, "%s: a %s was not handled: %s", self.name, type(delivery.message).__name__, error)
        delivery.released()

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._closed is None:
            self._on_failed(self, error)


def _evictable(delivery: Delivery) -> bool:
    return not delivery.message.__class__.__module__.startswith("headrace.transport.system")
