"""What an actor is: an object with async handlers chosen by message type, a start, a stop, and a context.

Its constructor is the config schema (keyword-only, typed, cheap). It is called only by its runtime, one step at a
time on one event loop; it never holds another actor, only names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from headrace.transport.mailbox import MailboxBound

if TYPE_CHECKING:
    from headrace.transport.context import Context

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """`limit`: how many of a concurrent handler run at once (None: as many as the mailbox holds)."""

    method: str
    concurrent: bool
    limit: int | None
    stream: bool


def handles(message_type: type, *, concurrent: bool | int = False, stream: bool = False) -> Callable[[F], F]:
    """Mark an async method as the handler of one message type.

    By default messages are handled one at a time in the order of arrival. `concurrent=True` gives each a task,
    `concurrent=N` at most N at once; a cancelled or expired ask then cancels its task. `stream=True` marks an async
    generator, many replies, always concurrent.
    """
    if isinstance(concurrent, int) and not isinstance(concurrent, bool) and concurrent < 1:
        raise ValueError(f"handles(concurrent=…) must be True, False or >= 1, got {concurrent}")

    def mark(function: F) -> F:
        limit = concurrent if isinstance(concurrent, int) and not isinstance(concurrent, bool) else None
        spec = HandlerSpec(function.__name__, bool(concurrent) or stream, limit, stream)
        marks: list[tuple[type, HandlerSpec]] = getattr(function, "_handles", [])
        function._handles = [*marks, (message_type, spec)]  # type: ignore[attr-defined]
        return function

    return mark


class Actor:
    """Base class. `mailbox` bounds what waits for it; a class or an instance may set another bound."""

    mailbox: MailboxBound = MailboxBound()
    handlers: ClassVar[dict[type, HandlerSpec]] = {}
    _context: Context | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        table = dict(cls.handlers)
        for value in list(vars(cls).values()):
            for message_type, spec in getattr(value, "_handles", ()):
                table[message_type] = spec
        cls.handlers = table

    @property
    def context(self) -> Context:
        if self._context is None:
            raise RuntimeError(f"{type(self).__name__} has no context yet; it gets one when a Runtime adds it")
        return self._context

    async def on_start(self, context: Context) -> None:
        """Heavy work. The actor is announced, and its messages handled, once this returns; raising fails the
        process."""

    async def on_stop(self) -> None:
        """Called once when the runtime stops the actor; handlers and the context still work until it returns."""

    def has_work(self) -> bool:
        """Whether it holds something that it must finish before its process may leave in mid-run, beside the messages
        in its mailbox and handlers, which are waited for anyhow. Asked repeatedly while the process is leaving."""
        return False

    def metadata(self) -> dict[str, object]:
        """Announced with the actor (JSON-like values). Read once, after on_start."""
        return {}
