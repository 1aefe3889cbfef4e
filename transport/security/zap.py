"""Admits to one context's CURVE sockets the clients that hold one key (ZAP, ZeroMQ RFC 27). Without a handler libzmq
would admit any key; every context, so every lane, needs its own.

Plain REP socket, drained by its descriptor on the event loop. libzmq asks during each handshake and waits; while the
event loop stands still nobody new is admitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from headrace.transport.bounded_log import BoundedLog
from headrace.transport.security.counters import HandshakeCounters

logger = logging.getLogger(__name__)

DOMAIN = "headrace"
"""Of the bound sockets and of this handler: where the two differ all are refused."""

_ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_NUM_FIELDS = 7  # version, request id, domain, peer's address, routing id, mechanism, its public key
_BUDGET = 64


class ZapHandler:
    """`client_public`: the one key that is admitted, as Z85 text. Make it before the context's sockets are bound."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], client_public: str, counters: HandshakeCounters
    ) -> None:
        self._admitted = z85.decode(client_public)
        self._counters = counters
        self._log = BoundedLog(logger)
        self._loop = asyncio.get_running_loop()
        self._rep = context.socket(zmq.REP)
        self._rep.setsockopt(zmq.LINGER, 0)
        self._rep.bind(_ENDPOINT)
        self._fd: int | None = int(self._rep.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Idempotent."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            self._fd = None
            self._rep.close()

    def _drain(self) -> None:
        """Until the socket is empty, also after the last send: a send consumes the descriptor's edge."""
        if self._fd is None:
            return
        for _ in range(_BUDGET):
            try:
                request = self._rep.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._rep.send_multipart(self._answer(request), zmq.NOBLOCK)
        self._loop.call_soon(self._drain)

    def _answer(self, request: Sequence[bytes]) -> list[bytes]:
        if len(request) != _NUM_FIELDS or request[0] != _VERSION:
            self._refuse("?", "no CURVE request of ZAP 1.0")
            return [_VERSION, request[1] if len(request) > 1 else b"", b"500", b"not understood", b"", b""]
        version, request_id, domain, address, _, mechanism, key = request
        if (domain, mechanism, key) == (DOMAIN.encode(), b"CURVE", self._admitted):
            self._counters.admitted += 1
            return [version, request_id, b"200", b"OK", b"", b""]
        self._refuse(address.decode("ascii", "replace"), "its key is not this run's")
        return [version, request_id, b"400", b"not a key of this run", b"", b""]

    def _refuse(self, address: str, reason: str) -> None:
        self._counters.refused += 1
        self._log.warning("refused", "refused a connection from %s: %s", address, reason)
