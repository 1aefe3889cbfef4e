"""Whatever a handler raises, its asker hears of it by name and within bounds; what an ordinary exception does not end
goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from headrace.transport import Actor, ActorFailed, PeerLost, RemoteError, ZmqNetwork, handles, message


@message("faults.raise")
@dataclass(frozen=True, slots=True)
class Raise:
    what: str


class _NoPickle(Exception):
    def __init__(self, text: str, lock: object) -> None:
        super().__init__(text, lock)

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this")


class _NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")

    __repr__ = __str__


class _Base(BaseException):
    pass


def _deep(depth: int) -> None:
    if depth == 0:
        raise ValueError("at the bottom " + "x" * 1_000_000)
    (_deep if depth % 2 else _deeper)(depth - 1)


def _deeper(depth: int) -> None:
    _deep(depth)


class Thrower(Actor):
    @handles(Raise)
    async def serial(self, message: Raise) -> Raise:
        match message.what:
            case "unpicklable":
                raise _NoPickle("not to be pickled", object())
            case "textless":
                raise _NoText
            case "huge":
                _deep(500)
            case "surrogate":
                raise ValueError("half a pair \ud800")
            case "cancelled":
                raise asyncio.CancelledError("somebody else's")
            case "helper cancelled":
                helper = asyncio.ensure_future(asyncio.sleep(3600))
                asyncio.get_running_loop().call_soon(helper.cancel)
                await helper
            case "group":
                raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
            case "stop":
                raise StopIteration("of nothing")
            case "exit":
                raise SystemExit(3)
            case "base":
                raise _Base("not an Exception")
        return message


class Concurrent(Thrower):
    @handles(Raise, concurrent=True)
    async def serial(self, message: Raise) -> Raise:
        return await Thrower.serial(self, message)


@pytest.mark.parametrize("kind", [Thrower, Concurrent])
@pytest.mark.parametrize(
    ("what", "error_type"),
    [
        ("unpicklable", "_NoPickle"),
        ("textless", "_NoText"),
        ("huge", "ValueError"),
        ("surrogate", "ValueError"),
        ("cancelled", "CancelledError"),
        ("helper cancelled", "CancelledError"),
        ("group", "ExceptionGroup"),
        ("stop", "RuntimeError"),
    ],
)
def test_an_exception_is_its_askers_and_the_actor_lives(
    what: str,
    error_type: str,
    kind: type[Actor],
    network: ZmqNetwork,
    pair: Any,
    run: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """messaging fault 29: exceptions without a pickle or a text, huge tracebacks, cancellations that are not ours.
    Askers that keep them to themselves hide nothing: they are in the actor's own log."""

    async def main() -> None:
        async with pair(network) as (host, other):
            await other.add(kind(), "thrower/0")
            for runtime in (host, other):  # through the network, and within a process
                with pytest.raises(RemoteError) as error:
                    await runtime.context.ask("thrower/0", Raise(what), timeout_s=10)
                assert error.value.error_type == error_type
                assert len(str(error.value)) < 50_000
                assert error_type in str(error.value)
            await host.context.tell("thrower/0", Raise(what))
            assert await host.context.ask("thrower/0", Raise("nothing"), timeout_s=10) == Raise("nothing")
            assert not other.failed.done()

    run(main())
    told = [record.getMessage() for record in caplog.records if "which its asker is told" in record.msg]
    assert len(told) == 2
    assert all(error_type in text and len(text) < 21_000 for text in told)


@pytest.mark.parametrize("kind", [Thrower, Concurrent])
def test_what_is_no_exception_fails_the_actor(kind: type[Actor], network: ZmqNetwork, pair: Any, run: Any) -> None:
    """messaging fault 29: BaseException reaches the asker, then ends the actor and so its process, by name."""

    async def main() -> None:
        async with pair(network) as (host, other):
            await other.add(kind(), "thrower/0")
            with pytest.raises((RemoteError, PeerLost), match="_Base"):
                await host.context.ask("thrower/0", Raise("base"), timeout_s=10)
            with pytest.raises(ActorFailed, match="not an Exception"):
                await asyncio.wait_for(asyncio.shield(other.failed), 10)

    run(main())


def test_a_cancelled_ask_cancels_what_is_stated(
    network: ZmqNetwork, pair: Any, peer: ModuleType, run: Any, until: Any
) -> None:
    """messaging fault 29, docs/runtime.md "cancelling": a waiting message is never handled, a concurrent handler is
    cancelled, a serial one that has begun runs to its end."""

    async def main() -> None:
        async with pair(network) as (host, other):
            worker = peer.Worker()
            await other.add(worker, "worker/0")
            begun = asyncio.ensure_future(host.context.ask("worker/0", peer.Work(1, 0.3), timeout_s=60))
            waiting = asyncio.ensure_future(host.context.ask("worker/0", peer.Work(2), timeout_s=60))
            nap = asyncio.ensure_future(host.context.ask("worker/0", peer.Nap(60), timeout_s=60))
            await until(lambda: other._cells["worker/0"].mailbox.num_waiting == 2)
            for ask in (begun, waiting):
                ask.cancel()
            await until(lambda: worker.napping == 1)
            nap.cancel()
            await until(lambda: worker.cancelled == 1)
            await host.context.ask("worker/0", peer.Work(3), timeout_s=10)
            assert worker.numbers == [1, 3]

    run(main())
