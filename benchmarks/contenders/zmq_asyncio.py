"""pyzmq's own asyncio sockets on uvloop: DEALER to DEALER over ipc."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import uvloop
import zmq
import zmq.asyncio

from contenders.contender import PAYLOAD_BYTES, WINDOW_BYTES, start_server

ASK, TELL, COUNT, ARRAY = b"a", b"t", b"c", b"r"


def _socket(context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    return socket


def serve(endpoint: str) -> None:
    async def main() -> None:
        socket = _socket(zmq.asyncio.Context())
        socket.connect(endpoint)
        await socket.send(b"up")
        total = 0
        while True:
            frames = await socket.recv_multipart(copy=False)
            kind = bytes(frames[0].buffer[:1])
            if kind == ASK:
                await socket.send(frames[0].bytes)
            elif kind == TELL:
                total += 1
            elif kind == COUNT:
                await socket.send(b"%d" % total)
            else:
                total += len(np.frombuffer(frames[1].buffer, np.uint8)) > 0
                if frames[0].buffer[1:2] == b"!":
                    await socket.send(b"ok")

    uvloop.new_event_loop().run_until_complete(main())


class Client:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        endpoint = f"ipc://{self._folder.name}/s"
        self._loop = uvloop.new_event_loop()
        self._message = ASK + bytes(PAYLOAD_BYTES - 1)

        async def start() -> None:
            self._socket = _socket(zmq.asyncio.Context())
            self._socket.bind(endpoint)
            self._server = start_server("zmq_asyncio", endpoint)
            assert await self._socket.recv() == b"up"

        self._run(start())

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def asks(self, num: int) -> list[float]:
        async def main() -> list[float]:
            times = []
            for _ in range(num):
                began_s = time.perf_counter()
                await self._socket.send(self._message)
                await self._socket.recv()
                times.append(time.perf_counter() - began_s)
            return times

        return self._run(main())

    def pipelined(self, num: int, outstanding: int) -> float:
        async def main() -> float:
            began_s = time.perf_counter()
            sent = 0
            for received in range(num):
                while sent < num and sent - received < outstanding:
                    await self._socket.send(self._message)
                    sent += 1
                await self._socket.recv()
            return time.perf_counter() - began_s

        return self._run(main())

    def tells(self, num: int) -> float:
        async def main() -> float:
            message = TELL + self._message[1:]
            began_s = time.perf_counter()
            for _ in range(num):
                await self._socket.send(message)
            await self._socket.send(COUNT)
            await self._socket.recv()
            return time.perf_counter() - began_s

        return self._run(main())

    def arrays(self, nbytes: int, num: int) -> float:
        arrays = [np.full(nbytes, i, np.uint8) for i in range(4)]
        window = max(1, WINDOW_BYTES // nbytes // 2)

        async def main() -> float:
            pending = 0
            began_s = time.perf_counter()
            for i in range(num):
                last = i % window == window - 1 or i == num - 1
                await self._socket.send_multipart([ARRAY + b"!" if last else ARRAY, arrays[i % 4]], copy=False)
                pending += last
                if pending == 2:
                    await self._socket.recv()
                    pending -= 1
            for _ in range(pending):
                await self._socket.recv()
            return time.perf_counter() - began_s

        return self._run(main())

    def close(self) -> None:
        self._server.kill()
        self._server.wait()
        self._socket.close(0)
        self._folder.cleanup()
