"""CURVE on tcp, as peers meet it: the run's keys or nothing, and both ends hear of a refusal (messaging fault 18)."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from headrace.transport import CurveKeys, HandshakeFailed, PeerLost, Runtime, ZmqNetwork
from headrace.transport.security.counters import HandshakeCounters
from headrace.transport.security.handshakes import ConnectorWatch, _peer_of
from headrace.transport.security.zap import DOMAIN

TCP = "tcp://127.0.0.1"


def run(main: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main, 60)

    asyncio.run(bounded())


def with_host(body: Callable[[Runtime, CurveKeys], Awaitable[None]]) -> None:
    """`body` beside a runtime that hosts the directory on tcp with the run's keys."""

    async def main() -> None:
        keys = CurveKeys.make()
        host = Runtime(ZmqNetwork(bind=TCP, keys=keys))
        await host.start()
        try:
            await body(host, keys)
        finally:
            await host.stop()

    run(main())


def handshakes(runtime: Runtime) -> Any:
    return runtime._links._port.handshakes  # type: ignore[union-attr]


def raw_push(context: Any, runtime: Runtime, keys: CurveKeys | None) -> Any:
    push = context.socket(zmq.PUSH)
    push.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        keys.join(push)
    push.connect(runtime.address.control)
    push.send(b"anything", zmq.NOBLOCK)
    return push


def test_members_of_a_run_talk(samples: SimpleNamespace) -> None:
    async def body(host: Runtime, keys: CurveKeys) -> None:
        other = Runtime(ZmqNetwork(bind=TCP, keys=keys), directory=host.address)
        await other.start()
        await other.add(samples.Echo(), "echo/0")
        assert await host.context.ask("echo/0", samples.Say("hi"), timeout_s=20) == samples.Say("hi")
        array = np.arange(100_000)
        reply = await host.context.ask("echo/0", samples.Array(array), timeout_s=20)
        assert np.array_equal(reply.values, array)
        assert handshakes(host).admitted == 2, "one connection a lane"
        assert (handshakes(host).refused, handshakes(host).broken, handshakes(host).rejected) == (0, 0, 0)
        await other.stop()

    with_host(body)


def test_another_client_key_is_refused_counted_and_told(
    samples: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the ZAP handler any key would do: this one knows the public server key and has a pair of its own."""

    async def body(host: Runtime, keys: CurveKeys) -> None:
        own = CurveKeys.make()
        stranger = dataclasses.replace(keys, client_public=own.client_public, client_secret=own.client_secret)
        other = Runtime(ZmqNetwork(bind=TCP, keys=stranger), directory=host.address)
        with pytest.raises(HandshakeFailed, match=r"directory/0 .* refused this process's key \(ZAP status 400\)"):
            await other.start()
        assert handshakes(other).rejected == 1, "told once: a directory of other keys is not asked again"
        await other.stop()
        assert handshakes(host).refused >= 1
        assert handshakes(host).admitted == 0
        await host.add(samples.Echo(), "echo/0")
        assert await host.context.ask("echo/0", samples.Say("alive"), timeout_s=5)
        assert host._links.counters.batches == 0

    with_host(body)
    assert "refused a connection from 127.0.0.1: its key is not this run's" in caplog.text


def test_a_member_of_another_run_hears_that_it_is_one(samples: SimpleNamespace) -> None:
    """Other server keys: the listener cannot even read the first words and hangs up; thrice is no accident."""

    async def body(host: Runtime, keys: CurveKeys) -> None:
        other = Runtime(ZmqNetwork(bind=TCP, keys=CurveKeys.make()), directory=host.address)
        with pytest.raises(HandshakeFailed, match="breaks every handshake off"):
            await other.start()
        assert handshakes(other).rejected == 1
        await other.stop()
        await samples.until(lambda: handshakes(host).broken >= 3)
        assert host._links.counters.batches == 0

    with_host(body)


def test_a_peer_without_curve_hears_it_and_is_counted(samples: SimpleNamespace) -> None:
    async def body(host: Runtime, keys: CurveKeys) -> None:
        context = zmq.Context()
        push = raw_push(context, host, None)
        await samples.until(lambda: handshakes(host).broken >= 1)
        assert host._links.counters.batches == 0
        push.close()
        context.term()

    with_host(body)


def test_a_listener_without_curve_is_named_to_its_client(samples: SimpleNamespace) -> None:
    """A client with keys never falls back to plain text; each further ask tries anew and hears it again. Which
    of the two notices first, and so the first half of the reason, is a race."""

    async def main() -> None:
        host = Runtime(ZmqNetwork(bind=TCP))
        await host.start()
        other = Runtime(ZmqNetwork(bind=TCP, keys=CurveKeys.make()), directory=host.address)
        with pytest.raises(HandshakeFailed, match="not speak CURVE"):
            await other.start()
        assert handshakes(other).rejected == 1
        with pytest.raises(PeerLost, match="not speak CURVE"):
            await other.context.ask("directory/0", samples.Say("hi"), timeout_s=20)
        assert host._links.counters.batches == 0
        await other.stop()
        await host.stop()

    run(main())


def test_bytes_that_are_no_handshake_are_counted(samples: SimpleNamespace) -> None:
    """What is found by a port scan: no ZeroMQ at all."""

    async def body(host: Runtime, keys: CurveKeys) -> None:
        port = int(host.address.control.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as scanner:
            scanner.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 64)
        await samples.until(lambda: handshakes(host).broken + handshakes(host).disconnected >= 1)
        await host.add(samples.Echo(), "echo/0")
        assert await host.context.ask("echo/0", samples.Say("alive"), timeout_s=5)

    with_host(body)


def test_without_a_handler_of_its_domain_a_socket_admits_nobody(samples: SimpleNamespace) -> None:
    """libzmq's own default admits every key (messaging rule 18)."""

    async def main() -> None:
        keys = CurveKeys.make()
        context = zmq.Context()
        pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        keys.serve(pull, DOMAIN)
        pull.bind(f"{TCP}:*")
        keys.join(push)
        rejected: list[str] = []
        watch = ConnectorWatch(push, HandshakeCounters(), rejected.append)
        push.connect(pull.getsockopt(zmq.LAST_ENDPOINT))  # type: ignore[arg-type]
        push.send(b"anything", zmq.NOBLOCK)
        await asyncio.sleep(0.3)
        assert not pull.poll(0)
        watch.close()
        for one in (push, pull):
            one.close(linger=0)
        context.term()

    run(main())


def test_an_oversize_frame_cuts_the_connection_and_harms_nobody(samples: SimpleNamespace) -> None:
    """messaging fault 17, from a peer that does not check: it is cut off and counted, the others are served."""

    async def main() -> None:
        keys = CurveKeys.make()
        host = Runtime(ZmqNetwork(bind=TCP, keys=keys, max_message_bytes=1 << 20), max_message_bytes=1 << 20)
        await host.start()
        context = zmq.Context()
        push = context.socket(zmq.PUSH)
        push.setsockopt(zmq.LINGER, 0)
        keys.join(push)
        push.connect(host.address.bulk)
        push.send(bytes(1 << 21), zmq.NOBLOCK)
        await samples.until(lambda: handshakes(host).disconnected >= 1)
        push.send_multipart([b"x"] + [bytes(1 << 20)] * 2, zmq.NOBLOCK)
        await samples.until(lambda: host._links.counters.oversize >= 1)
        await host.add(samples.Echo(), "echo/0")
        assert await host.context.ask("echo/0", samples.Say("alive"), timeout_s=5)
        push.close()
        context.term()
        await host.stop()

    run(main())


def test_a_descriptor_that_became_something_else_leaks_nothing() -> None:
    reader, writer = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    assert [_peer_of(reader) for _ in range(20)] == ["?"] * 20
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(reader)
    os.close(writer)
    assert _peer_of(reader) == "?"
