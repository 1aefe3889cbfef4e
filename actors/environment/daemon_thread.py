"""A blocking call in a thread that nobody has to wait for.

The event loop's own executor has few threads and is joined when the process exits: one tool that hangs for ever would
block both. A daemon thread dies with the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_in_daemon_thread(function: Callable[..., T], *args: Any) -> T:
    """The function's result, or its exception. When the caller is cancelled the thread goes on by itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function(*args)
        except BaseException as raised:  # carried to the caller, whatever it is
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"tool-{getattr(function, '__qualname__', 'call')}", daemon=True).start()
    return await future
