"""Watches the handshakes of CURVE sockets through libzmq's monitor, which alone tells of them: a refused peer would
otherwise wait for ever in silence, at both ends.

The listener's watch counts; the connector's watch reports once that its peer will not have it. After such a report
libzmq may have given the connection up for good, so its owner closes the socket.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from headrace.transport.bounded_log import BoundedLog
from headrace.transport.security.counters import HandshakeCounters

logger = logging.getLogger(__name__)

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_BROKEN_OFF_TIMES = 3
"""A listener that closes so many handshakes in a row holds other keys. One that dies closes one."""
_BUDGET = 256
_MAX_PEERS = 4096


class _Monitor:
    """One socket's events, drained by descriptor on the event loop; make it before `bind` or `connect`."""

    def __init__(self, watched: zmq.Socket[bytes], events: int) -> None:
        self._watched = watched
        self._loop = asyncio.get_running_loop()
        self._events = watched.get_monitor_socket(events | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._events.setsockopt(zmq.LINGER, 0)
        self._fd: int | None = int(self._events.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Before the watched socket is closed. Idempotent."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None
            self._watched.disable_monitor()
            self._events.close()

    def _drain(self) -> None:
        for _ in range(_BUDGET):
            if self._fd is None:
                return
            try:
                event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            self.saw(int(event["event"]), int(event["value"]))
        self._loop.call_soon(self._drain)

    def saw(self, event: int, value: int) -> None:
        raise NotImplementedError


class ListenerWatch(_Monitor):
    """Counts what fails at a bound socket, and says from where while that can still be found out."""

    def __init__(self, bound: zmq.Socket[bytes], counters: HandshakeCounters) -> None:
        super().__init__(bound, _FAILED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._counters = counters
        self._log = BoundedLog(logger)
        self._peers: dict[int, str] = {}
        self._num_failed = 0

    def saw(self, event: int, value: int) -> None:
        """A failure is followed by the end of its connection, whose value is the descriptor."""
        if event == zmq.EVENT_ACCEPTED:
            if len(self._peers) < _MAX_PEERS:
                self._peers[value] = _peer_of(value)
        elif event & _FAILED:
            self._num_failed += 1
            if event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # the ZAP handler has counted that one
                self._counters.broken += 1
        elif event == zmq.EVENT_DISCONNECTED:
            peer = self._peers.pop(value, "?")
            if self._num_failed:
                self._num_failed -= 1
                self._log.warning("failed", "the handshake of a connection from %s failed: no peer of this run", peer)
            else:
                self._counters.disconnected += 1


class ConnectorWatch(_Monitor):
    """Calls `on_rejected(reason)` once, where the peer will not have this connection."""

    def __init__(
        self, connecting: zmq.Socket[bytes], counters: HandshakeCounters, on_rejected: Callable[[str], None]
    ) -> None:
        super().__init__(connecting, _FAILED)
        self._counters = counters
        self._on_rejected = on_rejected
        self._num_broken_off = 0

    def saw(self, event: int, value: int) -> None:
        reason = ""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._num_broken_off = 0
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            reason = f"it refused this process's key (ZAP status {value}): the two belong to different runs"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            reason = f"it does not speak CURVE, or is no peer of headrace (ZMTP error {value:#x})"
        elif value in (errno.EPIPE, errno.ECONNRESET):
            self._num_broken_off += 1
            if self._num_broken_off == _BROKEN_OFF_TIMES:
                reason = "it breaks every handshake off: it holds the keys of another run, or does not speak CURVE"
        if reason:
            self._counters.rejected += 1
            self._on_rejected(reason)


def _peer_of(descriptor: int) -> str:
    """Host and port at the other end of libzmq's descriptor, which may have been closed in the meantime."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return "?"
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # the number is something else's by now
        os.close(copy)
        return "?"
    with connection:
        try:
            host, port = connection.getpeername()[:2]
        except (OSError, ValueError):
            return "?"
        return f"{host}:{port}"
