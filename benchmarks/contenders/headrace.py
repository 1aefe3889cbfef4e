"""Headrace as its users have it: typed messages, actors in two processes, deadlines, credits, time accounting."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from contenders.contender import PAYLOAD_BYTES, start_server, stop_server
from headrace.transport import Actor, Context, CurveKeys, Runtime, StreamNetwork, ZmqNetwork, handles, message

TIMEOUT_S = 60.0


@message("bench.ping")
@dataclass(frozen=True, slots=True)
class Ping:
    data: bytes


@message("bench.note")
@dataclass(frozen=True, slots=True)
class Note:
    data: bytes


@message("bench.block")
@dataclass(frozen=True, slots=True, eq=False)
class Block:
    data: np.ndarray


@message("bench.count")
@dataclass(frozen=True, slots=True)
class Count:
    """ask → Counted: how many notes and blocks were handled since the last time."""


@message("bench.counted")
@dataclass(frozen=True, slots=True)
class Counted:
    num: int


class Server(Actor):
    def __init__(self) -> None:
        self._num = 0
        self._wanted: asyncio.Event = asyncio.Event()

    @handles(Ping)
    async def ping(self, message: Ping) -> Ping:
        return message

    @handles(Note)
    async def note(self, message: Note) -> None:
        self._num += 1

    @handles(Block)
    async def block(self, message: Block) -> None:
        self._num += 1

    @handles(Count)
    async def count(self, message: Count) -> Counted:
        num, self._num = self._num, 0
        return Counted(num)


class Caller(Actor):
    """The client's code runs as an actor's does: each of its steps is accounted for."""

    def work(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.context.spawn(coroutine, "measure")


def network(kind: str, folder: str) -> Any:
    """`kind`: ipc, ipc without shared memory, stream, tcp, or tcp with the CURVE keys that lie in the folder."""
    if kind == "stream":
        return StreamNetwork(folder=folder)
    if kind == "ipc":
        return ZmqNetwork(ipc_folder=folder)
    if kind == "ipc_frames":
        return ZmqNetwork(ipc_folder=folder, shared_memory_bytes=0)
    keys = CurveKeys.read(Path(folder) / "keys") if kind == "curve" else None
    return ZmqNetwork(bind="tcp://127.0.0.1", keys=keys)


def serve(kind: str, folder: str, directory: str) -> None:
    async def main() -> None:
        runtime = Runtime(network(kind, folder), directory=directory)
        await runtime.start()
        await runtime.add(Server(), "server/0")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
        await runtime.stop()

    uvloop.new_event_loop().run_until_complete(main())


class Client:
    def __init__(self, kind: str = "ipc") -> None:
        self._folder = tempfile.TemporaryDirectory()
        if kind == "curve":
            CurveKeys.make().write(Path(self._folder.name) / "keys")
        self._loop = uvloop.new_event_loop()
        self._caller = Caller()

        async def start() -> Context:
            self._runtime = Runtime(network(kind, self._folder.name))
            await self._runtime.start()
            self._server = start_server("headrace", kind, self._folder.name, str(self._runtime.address))
            context = await self._runtime.add(self._caller, "caller/0")
            await context.group("server").wait_for(1, timeout_s=TIMEOUT_S)
            return context

        self._context: Context = self._loop.run_until_complete(start())
        self._ping = Ping(bytes(PAYLOAD_BYTES))

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def main() -> Any:
            return await self._caller.work(coroutine)

        return self._loop.run_until_complete(main())

    def asks(self, num: int) -> list[float]:
        async def main() -> list[float]:
            ask, ping, times = self._context.ask, self._ping, []
            for _ in range(num):
                began_s = time.perf_counter()
                await ask("server/0", ping, timeout_s=TIMEOUT_S)
                times.append(time.perf_counter() - began_s)
            return times

        return self._run(main())

    def pipelined(self, num: int, outstanding: int) -> float:
        ask, ping = self._context.ask, self._ping

        async def one(share: int) -> None:
            for _ in range(share):
                await ask("server/0", ping, timeout_s=TIMEOUT_S)

        async def main() -> float:
            share = num // outstanding
            began_s = time.perf_counter()
            await asyncio.gather(*(one(share) for _ in range(outstanding)))
            return (time.perf_counter() - began_s) * num / (share * outstanding)

        return self._run(main())

    def tells(self, num: int) -> float:
        async def main() -> float:
            tell, note = self._context.tell, Note(self._ping.data)
            began_s = time.perf_counter()
            for _ in range(num):
                await tell("server/0", note)
            await self._all_handled(num)
            return time.perf_counter() - began_s

        return self._run(main())

    def arrays(self, nbytes: int, num: int) -> float:
        arrays = [np.full(nbytes, i, np.uint8) for i in range(4)]

        async def main() -> float:
            began_s = time.perf_counter()
            for i in range(num):
                await self._context.tell("server/0", Block(arrays[i % 4]))
            await self._all_handled(num)
            return time.perf_counter() - began_s

        return self._run(main())

    def asks_beside(self, nbytes: int, num: int) -> list[float]:
        """Round trips one after the other for as long as `num` arrays of `nbytes` flow on the other lane."""
        arrays = [np.full(nbytes, i, np.uint8) for i in range(4)]

        async def main() -> list[float]:
            times: list[float] = []
            flow = self._caller.work(self._flow(arrays, num))
            while not flow.done():
                began_s = time.perf_counter()
                await self._context.ask("server/0", self._ping, timeout_s=TIMEOUT_S)
                times.append(time.perf_counter() - began_s)
            await flow
            return times

        return self._run(main())

    async def _flow(self, arrays: list[np.ndarray], num: int) -> None:
        for i in range(num):
            await self._context.tell("server/0", Block(arrays[i % len(arrays)]))
        await self._all_handled(num)

    async def _all_handled(self, num: int) -> None:
        """Blocks travel on the bulk lane, the question on the other: it is asked until all are there."""
        handled = 0
        while handled < num:
            counted: Counted = await self._context.ask("server/0", Count(), timeout_s=TIMEOUT_S)
            handled += counted.num

    def close(self) -> None:
        # The server takes its leave of the directory, which lives here.
        self._loop.run_until_complete(self._loop.run_in_executor(None, stop_server, self._server))
        self._loop.run_until_complete(self._runtime.stop())
        self._folder.cleanup()
