"""Length-prefixed frames on a stream socket, blocking, for the warden and its child. The asyncio side is
worker_pool.py."""

from __future__ import annotations

import socket
import struct

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 1 << 30


class FrameTooLarge(ValueError):
    """A peer announced more than MAX_FRAME_BYTES."""


def pack_frame(payload: bytes) -> bytes:
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame may hold {MAX_FRAME_BYTES} bytes, got {len(payload)}")
    return HEADER.pack(len(payload)) + payload


def frame_length(header: bytes) -> int:
    """Payload length that a header announces. Raises FrameTooLarge."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame may hold {MAX_FRAME_BYTES} bytes, {length} were announced")
    return int(length)


def send_frame(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(pack_frame(payload))


def receive_frame(connection: socket.socket) -> bytes | None:
    """The next payload; None where the peer closed, also in the middle of a frame."""
    header = _receive_exactly(connection, HEADER.size)
    return None if header is None else _receive_exactly(connection, frame_length(header))


def _receive_exactly(connection: socket.socket, num_bytes: int) -> bytes | None:
    chunks: list[bytes] = []
    while num_bytes:
        chunk = connection.recv(min(num_bytes, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        num_bytes -= len(chunk)
    return b"".join(chunks)
