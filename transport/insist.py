"""Asks that must be answered: said again where the peer, or the connection to it, was lost.

For messages whose effect is the same the second time; whoever sends one that is not must not insist on it. A message
that must arrive is never told: nobody would know that a broken connection took it.
"""

from __future__ import annotations

import logging
from typing import Any

from headrace.transport.context import Context
from headrace.transport.errors import DeadlineExceeded, PeerLost, Refused, TransportError

logger = logging.getLogger(__name__)

_PAUSE_S = 0.5


async def insist(
    context: Context,
    to: str,
    message: object,
    *,
    timeout_s: float,
    patience_s: float,
    final: tuple[type[TransportError], ...] = (),
) -> Any:
    """The reply of `to`, or of its successor. `timeout_s`: of each ask. `patience_s`: for how long it is repeated after
    the peer was first found lost, silent or full. Raises what `context.ask` raises, once the patience is at its end;
    RemoteError, BadMessage, RuntimeStopped and what is `final` at once: they would be the same again."""
    clock = context.clock
    give_up_s: float | None = None
    while True:
        try:
            return await context.ask(to, message, timeout_s=timeout_s)
        except (PeerLost, Refused, DeadlineExceeded) as error:
            give_up_s = give_up_s or clock.time() + patience_s
            if isinstance(error, final) or clock.time() >= give_up_s:
                raise
            logger.warning("%s is said to %s again: %s", type(message).__name__, to, error)
            await clock.sleep(_PAUSE_S)
