"""Raw pyzmq, synchronous: DEALER to DEALER over ipc, arrays in a frame of their own without a copy. The floor for
everything that is built on ZeroMQ: no event loop, no typed messages, no deadlines, no credits, no supervision."""

from __future__ import annotations

import tempfile
import time

import numpy as np
import zmq

from contenders.contender import PAYLOAD_BYTES, WINDOW_BYTES, start_server

ASK, TELL, COUNT, ARRAY = b"a", b"t", b"c", b"r"


def _socket(context: zmq.Context) -> zmq.Socket:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    return socket


def serve(endpoint: str) -> None:
    socket = _socket(zmq.Context())
    socket.connect(endpoint)
    socket.send(b"up")
    total = 0
    while True:
        frames = socket.recv_multipart(copy=False)
        kind = bytes(frames[0].buffer[:1])
        if kind == ASK:
            socket.send(frames[0].bytes)
        elif kind == TELL:
            total += 1
        elif kind == COUNT:
            socket.send(b"%d" % total)
        else:
            total += len(np.frombuffer(frames[1].buffer, np.uint8)) > 0
            if frames[0].buffer[1:2] == b"!":
                socket.send(b"ok")


class Client:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        endpoint = f"ipc://{self._folder.name}/s"
        self._socket = _socket(zmq.Context())
        self._socket.bind(endpoint)
        self._server = start_server("zmq_sync", endpoint)
        assert self._socket.recv() == b"up"
        self._message = ASK + bytes(PAYLOAD_BYTES - 1)

    def asks(self, num: int) -> list[float]:
        socket, message, times = self._socket, self._message, []
        for _ in range(num):
            began_s = time.perf_counter()
            socket.send(message)
            socket.recv()
            times.append(time.perf_counter() - began_s)
        return times

    def pipelined(self, num: int, outstanding: int) -> float:
        socket, message = self._socket, self._message
        began_s = time.perf_counter()
        sent = 0
        for received in range(num):
            while sent < num and sent - received < outstanding:
                socket.send(message)
                sent += 1
            socket.recv()
        return time.perf_counter() - began_s

    def tells(self, num: int) -> float:
        socket, message = self._socket, TELL + self._message[1:]
        began_s = time.perf_counter()
        for _ in range(num):
            socket.send(message)
        socket.send(COUNT)
        socket.recv()
        return time.perf_counter() - began_s

    def arrays(self, nbytes: int, num: int) -> float:
        socket = self._socket
        arrays = [np.full(nbytes, i, np.uint8) for i in range(4)]
        window = max(1, WINDOW_BYTES // nbytes // 2)
        pending = 0
        began_s = time.perf_counter()
        for i in range(num):
            last = i % window == window - 1 or i == num - 1
            socket.send(ARRAY + b"!" if last else ARRAY, zmq.SNDMORE)
            socket.send(arrays[i % 4], copy=False)
            pending += last
            if pending == 2:
                socket.recv()
                pending -= 1
        for _ in range(pending):
            socket.recv()
        return time.perf_counter() - began_s

    def close(self) -> None:
        self._server.kill()
        self._server.wait()
        self._socket.close(0)
        self._folder.cleanup()
