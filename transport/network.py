"""What the runtime asks of a network: ports that carry frames to addresses, in order for each pair and lane.

A network knows nothing of messages. Every network passes tests/transport/test_network_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from headrace.transport.errors import TransportError

Frame = bytes | memoryview

LOOPBACK = "127.0.0.1"
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024**3
CONTROL_MAX_FRAME_BYTES = 512 * 1024
"""A batch holds 64 KiB, or one envelope: a message of 64 KiB, or an error with its traceback."""
HEADER_ROOM_BYTES = 64 * 1024
"""What a batch adds to one message of the largest size."""


SHARED_MEMORY_BYTES = 64 * 1024**2
"""Of one sender's memory for arrays to one receiver; only what was used of it is resident."""
MAX_SHARED_MEMORY_BYTES = 16 * 1024**3


def checked_shared_memory(num_bytes: int) -> int:
    """Raises ValueError."""
    if type(num_bytes) is not int or not 0 <= num_bytes <= MAX_SHARED_MEMORY_BYTES:
        raise ValueError(f"shared_memory_bytes must be from 0 (none) to {MAX_SHARED_MEMORY_BYTES}, got {num_bytes!r}")
    return num_bytes


class Lane(IntEnum):
    """Control and bulk never share a socket or an I/O thread: 8 MiB ahead of a control message cost it 100 ms."""

    CONTROL = 0
    BULK = 1


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process receives: one endpoint a lane, and the incarnation that must still be the one listening there."""

    incarnation: str
    control: str
    bulk: str

    @property
    def host(self) -> str:
        """Where other processes reach what this one opens: the address of a TCP endpoint, else this very host."""
        scheme, _, rest = self.control.partition("://")
        return rest.rpartition(":")[0].strip("[]") if scheme == "tcp" else LOOPBACK

    def __str__(self) -> str:
        return f"{self.incarnation}|{self.control}|{self.bulk}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """The inverse of str(). Raises TransportError with the form that is expected."""
        parts = text.split("|")
        if len(parts) != 3 or not all(parts):
            raise TransportError(f"an address is 'incarnation|control endpoint|bulk endpoint', got {text!r}")
        return cls(*parts)

    def endpoint(self, lane: Lane) -> str:
        return self.bulk if lane is Lane.BULK else self.control


Receive = Callable[[Lane, Sequence[Frame]], None]
"""Called on the event loop with the frames of one message. It must not raise: what it cannot read it counts."""

Unreachable = Callable[[Lane, str, str], None]
"""Called on the event loop with lane, endpoint and reason where the process there will not have this one: it is none of
this run. Nothing that was queued for it on that lane has left, and the next message tries anew."""


def nobody_cares(lane: Lane, endpoint: str, reason: str) -> None:
    """For ports that only listen."""


class Port(Protocol):
    """One runtime's end of a network."""

    max_message_bytes: int
    """Of one message; the runtime may have a lower limit of its own."""

    shared_memory_bytes: int
    """How much memory to offer each peer for large arrays, and whether to map what peers offer; 0 where peers may be
    other hosts'."""

    @property
    def more(self) -> bool:
        """Whether others that have arrived on the control lane already follow the one that is being delivered."""

    @property
    def address(self) -> Address: ...

    def check(self, address: Address) -> None:
        """Raises TransportError for an address that no peer of this network can have. Call it before sending to what a
        peer said."""

    def send(self, to: Address, lane: Lane, frames: Sequence[Frame]) -> None:
        """Queue one message; never waits. Frames must not change until they are sent (arrays are frozen by convention).
        What is sent to an address that is gone is lost: the directory tells."""

    def forget(self, to: Address) -> None:
        """That process is gone: drop what is queued for it and its sockets."""

    async def close(self, flush_s: float) -> None:
        """Send what is queued for at most `flush_s`, then release everything. Idempotent."""


class Network(Protocol):
    heartbeat_s: float | None
    """How often runtimes tell the directory that they live; None where a runtime cannot die alone (in memory)."""

    async def open(self, incarnation: str, receive: Receive, unreachable: Unreachable = nobody_cares) -> Port: ...
