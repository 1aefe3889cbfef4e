"""One message's way through its handler, and what its asker is told: the reply, the items of a stream, or the error.

A handler that raises fails its asker, never the actor. Called by the actor's cell; it calls the actor's methods and the
reply ports.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator
from typing import Any

from headrace.transport.activity import Activity
from headrace.transport.actor import Actor, HandlerSpec
from headrace.transport.bounded_log import BoundedLog
from headrace.transport.errors import Refused, RemoteError, TransportError, cut, describe
from headrace.transport.ports import ReplyPort

logger = logging.getLogger(__name__)


class Delivery:
    """A message on its way to a handler."""

    __slots__ = ("cancelled", "message", "port", "since_s", "task")

    def __init__(self, message: Any, port: ReplyPort | None) -> None:
        self.message = message
        self.port = port
        self.since_s = 0.0
        self.cancelled = False
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Nobody waits for the reply any more: a waiting message is skipped, a concurrent handler's task is cancelled;
        a handler that runs in the mailbox's own task goes on."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def abandon(self, call_id: int) -> None:
        """As the server of a call of this process."""
        self.cancel()

    def released(self) -> None:
        """It has left the mailbox, handled or not; called once."""


class Handling:
    """`ending`: why the actor ends, once it does."""

    def __init__(self, actor: Actor, name: str, activity: Activity) -> None:
        self.ending: str | None = None
        self._actor = actor
        self._name = name
        self._activity = activity
        self._log = BoundedLog(logger)

    async def handle(self, delivery: Delivery, spec: HandlerSpec) -> None:
        """Call the handler; its asker gets the reply, the items, or the error. Raises what ends the task itself."""
        port = delivery.port
        method = getattr(self._actor, spec.method)
        try:
            if spec.stream:
                await self._produce(method(delivery.message), port, spec)
                return
            value = await self._activity.drive(method(delivery.message), spec.method)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # of something that the handler awaited: its own failure
                self._report(delivery, spec, error)
                return
            if port is not None:
                port.fail(Refused(f"{self._name} cancelled {spec.method}: {self.ending or 'the asker gave up'}"))
            if self.ending is not None or not delivery.cancelled:
                raise
        except Refused as error:
            if port is not None:
                port.fail(error)
        except Exception as error:
            self._report(delivery, spec, error)
        except BaseException as error:  # SystemExit and the like: tell the asker, then fail the actor
            self._report(delivery, spec, error)
            raise
        else:
            if port is not None:
                port.reply(value)

    async def _produce(self, items: AsyncGenerator[Any, None], port: ReplyPort | None, spec: HandlerSpec) -> None:
        if port is None:
            await items.aclose()
            raise TypeError(f"{self._name}.{spec.method} streams; call it with context.stream, not tell")
        try:
            while True:
                try:
                    item = await self._activity.drive(_next(items), spec.method)
                except StopAsyncIteration:
                    break
                await port.item(item)
        finally:
            await items.aclose()
        port.end()

    def _report(self, delivery: Delivery, spec: HandlerSpec, error: BaseException) -> None:
        text = cut("".join(traceback.format_exception(error)), 20_000)
        if delivery.port is None:
            logger.error("%s: %s raised on %s:\n%s", self._name, spec.method, type(delivery.message).__name__, text)
            return
        # Here too: its asker may keep it to itself. Transport errors are news of others, not defects of this handler.
        told = describe(error) if isinstance(error, TransportError) else text.rstrip()
        kind = type(error).__name__
        self._log.warning(
            spec.method, "%s: %s raised %s, which its asker is told:\n%s", self._name, spec.method, kind, told
        )
        summary = f"{self._name}.{spec.method} raised {describe(error)}"
        delivery.port.fail(RemoteError(summary, kind, text))


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    return await items.__anext__()
