"""Ray: an actor in a worker process, called from the driver."""

from __future__ import annotations

import os
import time

import numpy as np

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
import ray  # the variable is read at import

from contenders.contender import PAYLOAD_BYTES


class Server:
    def __init__(self) -> None:
        self._num = 0

    def ping(self, data: bytes) -> bytes:
        return data

    def note(self, data: bytes) -> None:
        self._num += 1

    def block(self, data: np.ndarray) -> None:
        self._num += 1

    def count(self) -> int:
        num, self._num = self._num, 0
        return num


class Client:
    def __init__(self) -> None:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
        )
        self._server = ray.remote(Server).remote()
        ray.get(self._server.count.remote())
        self._data = bytes(PAYLOAD_BYTES)

    def asks(self, num: int) -> list[float]:
        times = []
        for _ in range(num):
            began_s = time.perf_counter()
            ray.get(self._server.ping.remote(self._data))
            times.append(time.perf_counter() - began_s)
        return times

    def pipelined(self, num: int, outstanding: int) -> float:
        began_s = time.perf_counter()
        pending = []
        for _ in range(num):
            if len(pending) >= outstanding:
                ready, pending = ray.wait(pending)
                ray.get(ready)
            pending.append(self._server.ping.remote(self._data))
        ray.get(pending)
        return time.perf_counter() - began_s

    def tells(self, num: int) -> float:
        began_s = time.perf_counter()
        for _ in range(num):
            self._server.note.remote(self._data)
        ray.get(self._server.count.remote())
        return time.perf_counter() - began_s

    def arrays(self, nbytes: int, num: int) -> float:
        arrays = [np.full(nbytes, i, np.uint8) for i in range(4)]
        began_s = time.perf_counter()
        pending = []
        for i in range(num):
            if len(pending) >= 4:
                _, pending = ray.wait(pending)
            pending.append(self._server.block.remote(arrays[i % 4]))
        ray.get(pending)
        return time.perf_counter() - began_s

    def close(self) -> None:
        ray.shutdown()
