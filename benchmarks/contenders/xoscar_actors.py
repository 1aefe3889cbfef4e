"""xoscar: an actor pool in each of two processes, joined over its unix-socket or tcp transport."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import uvloop
import xoscar

from contenders.contender import PAYLOAD_BYTES, start_server, stop_server

SERVER = "127.0.0.1:{port}"


class Server(xoscar.Actor):  # type: ignore[misc]
    def __init__(self) -> None:
        self._num = 0

    async def ping(self, data: bytes) -> bytes:
        return data

    async def note(self, data: bytes) -> None:
        self._num += 1

    async def block(self, data: np.ndarray) -> None:
        self._num += 1

    async def count(self) -> int:
        num, self._num = self._num, 0
        return num


def serve(port: str) -> None:
    async def main() -> None:
        address = SERVER.format(port=port)
        await xoscar.create_actor_pool(address, n_process=0)
        await xoscar.create_actor(Server, address=address, uid="server")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)

    uvloop.new_event_loop().run_until_complete(main())


class Client:
    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        port = _free_port()
        self._server = start_server("xoscar_actors", str(port))
        self._run(self._start(port))
        self._data = bytes(PAYLOAD_BYTES)

    async def _start(self, port: int) -> None:
        await xoscar.create_actor_pool(f"127.0.0.1:{_free_port()}", n_process=0)
        for _ in range(200):
            try:
                self._ref = await xoscar.actor_ref(address=SERVER.format(port=port), uid="server")
                return
            except Exception:
                await asyncio.sleep(0.1)
        raise RuntimeError("the xoscar server did not start")

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def asks(self, num: int) -> list[float]:
        async def main() -> list[float]:
            times = []
            for _ in range(num):
                began_s = time.perf_counter()
                await self._ref.ping(self._data)
                times.append(time.perf_counter() - began_s)
            return times

        return self._run(main())

    def pipelined(self, num: int, outstanding: int) -> float:
        async def one(share: int) -> None:
            for _ in range(share):
                await self._ref.ping(self._data)

        async def main() -> float:
            share = num // outstanding
            began_s = time.perf_counter()
            await asyncio.gather(*(one(share) for _ in range(outstanding)))
            return (time.perf_counter() - began_s) * num / (share * outstanding)

        return self._run(main())

    def tells(self, num: int) -> float:
        """Its one-way send; what a user does who wants no reply."""

        async def main() -> float:
            began_s = time.perf_counter()
            for _ in range(num):
                await self._ref.note.tell(self._data)
            await self._all_handled(num)
            return time.perf_counter() - began_s

        return self._run(main())

    def arrays(self, nbytes: int, num: int) -> float:
        arrays = [np.full(nbytes, i, np.uint8) for i in range(4)]

        async def main() -> float:
            began_s = time.perf_counter()
            for i in range(num):
                await self._ref.block(arrays[i % 4])
            await self._all_handled(num)
            return time.perf_counter() - began_s

        return self._run(main())

    async def _all_handled(self, num: int) -> None:
        handled = 0
        while handled < num:
            handled += await self._ref.count()

    def close(self) -> None:
        stop_server(self._server)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
