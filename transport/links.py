"""Placeholder until the network lands in the next commit."""

from __future__ import annotations

from typing import Any

from headrace.transport.errors import TransportError
from headrace.transport.system import ActorRecord


class Links:
    def credit(self, record: ActorRecord) -> Any:
        raise TransportError(f"{record.name} is in another process and this build has no network")

    def ask(self, *args: Any) -> None: ...

    def tell(self, record: ActorRecord, message: object, *, system: bool = False) -> None: ...

    def forget(self, incarnation: str) -> None: ...

    def forget_actor(self, name: str, incarnation: str) -> None: ...

    async def close(self, flush_s: float) -> None: ...
