"""How the learner speaks with the dispatcher, which may be restarted meanwhile.

Whatever goes this way may be said twice: the dispatcher deduplicates (NextBatch gives the same batch again,
BatchTrained goes by session ids, LearnerResumed and TrainingFinished change nothing the second time).
"""

from __future__ import annotations

import logging
from typing import Any

from headrace.transport import Context, DeadlineExceeded, PeerLost, Refused

logger = logging.getLogger(__name__)

DISPATCHER = "dispatcher"
_PAUSE_S = 0.5


class DispatcherLink:
    """`patience_s`: for how long an ask is repeated after the dispatcher was first found lost or silent."""

    def __init__(self, context: Context, *, patience_s: float) -> None:
        self._context = context
        self._patience_s = patience_s

    async def ask(self, message: object, *, timeout_s: float) -> Any:
        """The reply of the dispatcher, or of its successor. Raises what `context.ask` raises, once the patience is at
        its end; RemoteError at once."""
        clock = self._context.clock
        give_up_s: float | None = None
        while True:
            try:
                return await self._context.ask(DISPATCHER, message, timeout_s=timeout_s)
            except (PeerLost, Refused, DeadlineExceeded) as error:
                give_up_s = give_up_s or clock.time() + self._patience_s
                if clock.time() >= give_up_s:
                    raise
                logger.warning("%s is said again: %s", type(message).__name__, error)
                await clock.sleep(_PAUSE_S)
