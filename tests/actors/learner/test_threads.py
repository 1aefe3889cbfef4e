"""One thread changes weights, one job at a time, the cancelled ones too; another, of a single core, reads beside it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import torch

from headrace.actors.learner.threads import ComputeThreads


class Loop:
    """The part of a Context that the threads use."""

    async def run_blocking(self, function: Any, *args: Any, label: str, executor: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, function, *args)


def play(body: Any, num_threads: int | None = 3) -> None:
    async def main() -> None:
        await asyncio.wait_for(body(ComputeThreads(Loop(), num_threads=num_threads)), 60)  # type: ignore[arg-type]

    asyncio.run(main())


def here() -> SimpleNamespace:
    return SimpleNamespace(ident=threading.get_ident(), width=torch.get_num_threads())


def test_all_work_is_in_one_thread_and_what_is_beside_it_in_one_of_a_single_core() -> None:
    async def body(threads: ComputeThreads) -> None:
        works = [await threads.run("work", here) for _ in range(3)]
        besides = [await threads.run_beside("read", here) for _ in range(3)]
        assert len({work.ident for work in works}) == len({beside.ident for beside in besides}) == 1
        assert works[0].ident != besides[0].ident
        assert [work.width for work in works] == [3] * 3
        assert [beside.width for beside in besides] == [1] * 3
        # a thread that comes later begins as the first one does, not as the narrow one
        assert (await asyncio.to_thread(here)).width == 3

    play(body)


def test_a_job_whose_awaiter_is_gone_still_comes_before_the_next_and_a_reader_waits_for_neither() -> None:
    async def body(threads: ComputeThreads) -> None:
        begun, go_on, order = threading.Event(), threading.Event(), []

        def first() -> None:
            begun.set()
            assert go_on.wait(60)
            order.append("first")

        awaiting = asyncio.ensure_future(threads.run("first", first))
        await asyncio.to_thread(begun.wait, 60)
        awaiting.cancel()
        following = asyncio.ensure_future(threads.run("second", order.append, "second"))
        await threads.run_beside("read", order.append, "beside")
        go_on.set()
        await following
        assert order == ["beside", "first", "second"]

    play(body)
