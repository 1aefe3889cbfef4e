"""Run the first step of a coroutine at once, outside of any task, on behalf of a task that waits and does the rest.

It spares a message that arrives alone a turn of the event loop. To the coroutine it looks as if the task ran it:
`asyncio.current_task()`, timeouts and context variables are the task's.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio.tasks import _enter_task, _leave_task  # documented under "Extending": for whoever steps tasks
from collections.abc import Coroutine, Generator
from typing import Any


class FirstStep:
    """`finished`: the coroutine has ended, with `error` or without. Else `rest` is to be awaited in the task."""

    __slots__ = ("_coroutine", "_yielded", "error", "finished")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], task: asyncio.Task[Any], context: contextvars.Context
    ) -> None:
        """Only where no task runs, and `task` waits."""
        self._coroutine = coroutine
        self._yielded: Any = None
        self.error: BaseException | None = None
        self.finished = True
        loop = task.get_loop()
        _enter_task(loop, task)
        try:
            self._yielded = context.run(coroutine.send, None)
            self.finished = False
        except StopIteration:
            pass
        except BaseException as error:
            self.error = error
        finally:
            _leave_task(loop, task)

    @types.coroutine
    def rest(self, cancelled: asyncio.CancelledError | None = None) -> Generator[Any, Any, None]:
        """The steps that are left. `cancelled`: the task was cancelled before it came to them; it belongs to them."""
        coroutine, yielded = self._coroutine, self._yielded
        pending: BaseException | None = cancelled
        if cancelled is not None and yielded is not None and yielded.cancel():
            pending = None  # as in any task: what is awaited is cancelled, and says so when it ends
        value: Any = None
        while True:
            if pending is None:
                try:
                    value = yield yielded
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # thrown in by the task: it belongs to the coroutine
                    pending = error
            try:
                yielded = coroutine.send(value) if pending is None else coroutine.throw(pending)
            except StopIteration:
                return
            pending = None
