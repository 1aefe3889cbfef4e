"""How the learner speaks with the dispatcher, which may be restarted meanwhile.

Whatever goes this way may be said twice: the dispatcher deduplicates (NextBatch gives the same batch again,
BatchTrained goes by session ids, LearnerResumed and TrainingFinished change nothing the second time).
"""

from __future__ import annotations

from typing import Any

from headrace.transport import Context, insist

DISPATCHER = "dispatcher"


class DispatcherLink:
    """`patience_s`: for how long an ask is repeated after the dispatcher was first found lost or silent."""

    def __init__(self, context: Context, *, patience_s: float) -> None:
        self._context = context
        self._patience_s = patience_s

    async def ask(self, message: object, *, timeout_s: float) -> Any:
        """The reply of the dispatcher, or of its successor. Raises what `context.ask` raises, once the patience is at
        its end; RemoteError at once."""
        return await insist(self._context, DISPATCHER, message, timeout_s=timeout_s, patience_s=self._patience_s)
