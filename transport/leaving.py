"""When a process that is asked to leave in mid-run has nothing in hand any more.

It ends nothing and has no bound of its own: whoever asked it to leave ends what takes too long. Called by the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.transport.cell import ActorCell
from headrace.transport.clock import Clock

POLL_S = 0.05
QUIET_S = 0.5
"""What was sent before its sender heard of the leaving arrives within that time; what does not, meets a lost peer."""


async def until_idle(cells: Sequence[ActorCell], clock: Clock) -> None:
    """Return when for QUIET_S no message waits, no handler runs and no actor says that it has work."""
    quiet_since_s = clock.time()
    while clock.time() - quiet_since_s < QUIET_S:
        if any(len(cell.mailbox) or cell.actor.has_work() for cell in cells):
            quiet_since_s = clock.time()
        await clock.sleep(POLL_S)
