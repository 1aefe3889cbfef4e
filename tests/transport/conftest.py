"""Messages, actors and networks that the transport's tests share (as fixtures: tests are no package)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.transport import (
    Actor,
    LoopbackNetwork,
    Network,
    PeerDown,
    PeerUp,
    StreamNetwork,
    ZmqNetwork,
    handles,
    message,
)


@message("test.say")
@dataclass(frozen=True, slots=True)
class Say:
    text: str


@message("test.number")
@dataclass(frozen=True, slots=True)
class Number:
    value: int


@message("test.count")
@dataclass(frozen=True, slots=True)
class Count:
    upto: int


@message("test.nap")
@dataclass(frozen=True, slots=True)
class Nap:
    seconds: float


@message("test.array")
@dataclass(frozen=True, slots=True, eq=False)
class Array:
    values: np.ndarray


@message("test.unhandled")
@dataclass(frozen=True, slots=True)
class Unhandled:
    pass


class Echo(Actor):
    """Handles every sample: records, repeats, naps, counts, fails on the text "boom"."""

    def __init__(self, *, fail: str = "boom") -> None:
        self.fail = fail
        self.heard: list[object] = []
        self.cancelled = 0
        self.napping = 0
        self.peak_napping = 0
        self.gate = asyncio.Event()
        self.produced = 0

    @handles(Say)
    async def say(self, message: Say) -> Say:
        self.heard.append(message)
        if message.text == self.fail:
            raise ValueError(f"cannot say {message.text}")
        if message.text == "gate":
            await self.gate.wait()
        return message

    @handles(Number)
    async def number(self, message: Number) -> None:
        self.heard.append(message)

    @handles(Nap, concurrent=2)
    async def nap(self, message: Nap) -> Say:
        self.napping += 1
        self.peak_napping = max(self.peak_napping, self.napping)
        try:
            await self.context.clock.sleep(message.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.napping -= 1
        return Say("rested")

    @handles(Count, stream=True)
    async def count(self, message: Count) -> AsyncIterator[Number]:
        for value in range(message.upto):
            self.produced += 1
            yield Number(value)
        if message.upto < 0:
            raise ValueError("cannot count down")

    @handles(Array)
    async def array(self, message: Array) -> Array:
        return message


class Watcher(Actor):
    """Records who comes and goes in one role."""

    def __init__(self, *, role: str) -> None:
        self.role = role
        self.news: list[PeerUp | PeerDown] = []

    async def on_start(self, context: object) -> None:
        self.context.watch(self.role)

    @handles(PeerUp)
    async def up(self, message: PeerUp) -> None:
        self.news.append(message)

    @handles(PeerDown)
    async def down(self, message: PeerDown) -> None:
        self.news.append(message)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Let the event loop turn until the condition holds."""
    end_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, "the condition did not come true"
        await asyncio.sleep(0.001)


@pytest.fixture(scope="session")
def samples() -> SimpleNamespace:
    return SimpleNamespace(
        Say=Say, Number=Number, Count=Count, Nap=Nap, Array=Array, Unhandled=Unhandled, Echo=Echo, Watcher=Watcher,
        until=until,
    )  # fmt: skip


@pytest.fixture(params=["loopback", "loopback_shared", "ipc", "tcp", "stream", "stream_frames"])
def make_network(request: pytest.FixtureRequest) -> Callable[[], Network]:
    """A maker of networks; every runtime of one test shares what it makes. Large arrays go through shared memory where
    there is any (ipc, stream, loopback_shared), else in frames."""
    makers: dict[str, Callable[[], Network]] = {
        "loopback": LoopbackNetwork,
        "loopback_shared": lambda: LoopbackNetwork(shared_memory_bytes=1 << 20),
        "ipc": ZmqNetwork,
        "tcp": lambda: ZmqNetwork(bind="tcp://127.0.0.1"),
        "stream": StreamNetwork,
        "stream_frames": lambda: StreamNetwork(shared_memory_bytes=0),
    }
    return makers[request.param]
