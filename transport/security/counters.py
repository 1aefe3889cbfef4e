"""What became of the handshakes of one runtime's tcp sockets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HandshakeCounters:
    """`admitted`, `refused`: clients with the run's key, and with another (by the ZAP handler). `broken`: connections
    to our sockets that never came as far: no CURVE, other server keys, no ZeroMQ. `rejected`: our own connections that
    a peer would not take. `disconnected`: connections to our sockets that ended after their handshake, be it that the
    peer stopped or that it sent a frame above the limit."""

    admitted: int = 0
    refused: int = 0
    broken: int = 0
    rejected: int = 0
    disconnected: int = 0
