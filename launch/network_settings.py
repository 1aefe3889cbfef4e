"""How the processes of a run reach each other; the names are those of `launch.network` in the config. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.transport import CurveKeys, Network, StreamNetwork, ZmqNetwork
from headrace.transport.network import DEFAULT_MAX_MESSAGE_BYTES, SHARED_MEMORY_BYTES, checked_shared_memory
from headrace.transport.security.interface import SCHEME, resolve

MIN_MESSAGE_BYTES = 1024 * 1024
ONE_HOST = ("ipc", "stream")
"""Whose sockets lie in a private folder instead of having keys."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """`bind`: "ipc" (ZeroMQ on one host), "stream" (unix streams of the event loop on one host), or "tcp://<address or
    interface>", which has CURVE with keys made for the run unless `curve` is false (loopback only: for measuring).
    `max_message_bytes`: the largest message; its sender is refused, a peer that sends more is cut off.
    `shared_memory_bytes`: on one host, what each process shares with each receiver for large arrays; 0: nothing."""

    bind: str = "ipc"
    curve: bool = True
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    shared_memory_bytes: int = SHARED_MEMORY_BYTES

    def __post_init__(self) -> None:
        if not isinstance(self.max_message_bytes, int) or self.max_message_bytes < MIN_MESSAGE_BYTES:
            raise ValueError(
                f"max_message_bytes must be an integer >= {MIN_MESSAGE_BYTES} (1 MiB), got {self.max_message_bytes!r}"
            )
        checked_shared_memory(self.shared_memory_bytes)
        if not isinstance(self.curve, bool):
            raise ValueError(f"curve must be true or false, got {self.curve!r}")
        if not isinstance(self.bind, str) or not (self.bind in ONE_HOST or self.bind.startswith(SCHEME)):
            raise ValueError(f'bind must be "ipc", "stream" or "tcp://<address or interface>", got {self.bind!r}')
        if self.bind not in ONE_HOST:
            address = resolve(self.bind)
            if not self.curve and not address.is_loopback:
                raise ValueError(
                    f"curve may be false on loopback only: {self.bind} ({address}) is reached by other hosts; leave it "
                    f"true, or use bind=tcp://127.0.0.1"
                )

    def make_keys(self) -> CurveKeys | None:
        """Fresh keys where this network needs any."""
        return CurveKeys.make() if self.curve and self.bind not in ONE_HOST else None

    def network(self, keys: CurveKeys | None, folder: str) -> Network:
        """`folder`: of mode 0700; the sockets of one host lie below it."""
        if self.bind == "stream":
            return StreamNetwork(
                folder=folder,
                max_message_bytes=self.max_message_bytes,
                shared_memory_bytes=self.shared_memory_bytes,
            )
        return ZmqNetwork(
            bind=self.bind,
            keys=keys,
            ipc_folder=folder,
            max_message_bytes=self.max_message_bytes,
            shared_memory_bytes=self.shared_memory_bytes,
        )
