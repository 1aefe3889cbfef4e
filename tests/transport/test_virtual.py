"""Virtual time: hours in milliseconds, the same order each time, and a name for what waits for nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.transport import Deadlock, run_virtual


def test_hours_pass_at_once() -> None:
    async def main() -> list[tuple[str, float]]:
        log: list[tuple[str, float]] = []

        async def tick(name: str, every_s: float) -> None:
            for _ in range(3):
                await asyncio.sleep(every_s)
                log.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(tick("a", 3600), tick("b", 5000))
        return log

    began_s = time.perf_counter()
    first = run_virtual(main())
    assert time.perf_counter() - began_s < 5
    assert first == [("a", 3600), ("b", 5000), ("a", 7200), ("b", 10000), ("a", 10800), ("b", 15000)]
    assert run_virtual(main()) == first


def test_waiting_for_nothing_is_named() -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="the forgotten one")

    with pytest.raises(Deadlock, match="the forgotten one"):
        run_virtual(main())


def test_blocking_functions_run_inline() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 7)

    assert run_virtual(main()) == 7


def test_errors_come_out() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main())
