"""The learner's turn on a GPU that it shares with engines, in mode=sync: it asks them to sleep before a step, and gives
its own spare memory back after it. They wake by themselves, as they load the version that follows.

An engine that does not sleep is told of, and the step is tried all the same: the optimizer says whether there is room.
"""

from __future__ import annotations

import logging

from headrace.actors.messages import EngineAsleep, SleepEngine
from headrace.transport import Context, TransportError

logger = logging.getLogger(__name__)

ROLES = ("generator", "evaluator")
SLEEP_TIMEOUT_S = 60.0


class EnginesAsleep:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def begin(self) -> int:
        """How many engines sleep now. Returns at its deadline at the latest."""
        num_asleep = 0
        for role in ROLES:
            replies = await self._context.group(role).ask_all(SleepEngine(), timeout_s=SLEEP_TIMEOUT_S)
            for name, reply in replies.items():
                if isinstance(reply, TransportError):
                    logger.warning("%s was asked to sleep: %s", name, reply)
                    continue
                asleep: EngineAsleep = reply
                num_asleep += not asleep.why_not
                if asleep.why_not:
                    logger.info("%s does not sleep: %s", name, asleep.why_not)
        return num_asleep

    @staticmethod
    def end() -> None:
        """In the worker thread, after the step: what torch keeps for the next allocation is the engines' again."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
