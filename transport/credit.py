"""Flow control between one sending process and one actor of another: the receiver grants, the sender spends. Pure
state machines.

The receiver announces a window (messages and bytes) with the actor's directory record and from then on only how much
it has consumed in all; totals make a lost or repeated grant harmless. One message larger than what is left of the
byte window may go where any bytes are left, so that nothing is too large to be sent; the overshoot is one message. A
broken connection starts a new epoch with full windows.
"""

from __future__ import annotations

_MAX_TOTAL = (1 << 63) - 1
"""Nobody sends so much; who only says so has totals that begin anew, and fit the wire."""


class SendWindow:
    """What one process may still send to one actor."""

    __slots__ = ("_consumed", "_consumed_bytes", "_sent", "_sent_bytes", "window", "window_bytes")

    def __init__(self, window: int, window_bytes: int) -> None:
        self.window = window
        self.window_bytes = window_bytes
        self._sent = self._consumed = self._sent_bytes = self._consumed_bytes = 0

    @property
    def outstanding(self) -> int:
        return self._sent - self._consumed

    @property
    def available(self) -> bool:
        return self._sent - self._consumed < self.window and self._sent_bytes - self._consumed_bytes < self.window_bytes

    def spend(self, nbytes: int) -> None:
        """One message of `nbytes` was sent."""
        self._sent += 1
        self._sent_bytes += nbytes

    def grant(self, consumed: int, consumed_bytes: int) -> None:
        """The receiver has consumed so much in all. Totals above what was sent are forged or confused and are cut to
        it."""
        self._consumed = max(self._consumed, min(consumed, self._sent))
        self._consumed_bytes = max(self._consumed_bytes, min(consumed_bytes, self._sent_bytes))

    def reset(self) -> None:
        """A new epoch: nothing is outstanding."""
        self._sent = self._consumed = self._sent_bytes = self._consumed_bytes = 0


class ReceiveWindow:
    """What one actor has consumed of one process's messages, and when that is worth telling it."""

    __slots__ = ("_announced", "_announced_bytes", "_quarter", "_quarter_bytes", "consumed", "consumed_bytes")

    def __init__(self, window: int, window_bytes: int) -> None:
        # Told in quarters of the window: the sender always has at least three quarters of what is truly free.
        self._quarter = max(1, window // 4)
        self._quarter_bytes = max(1, window_bytes // 4)
        self.consumed = self.consumed_bytes = self._announced = self._announced_bytes = 0

    def consume(self, nbytes: int) -> bool:
        """One message left the mailbox. True: send a grant with the totals now."""
        self.consumed += 1
        self.consumed_bytes = (self.consumed_bytes + nbytes) & _MAX_TOTAL
        if (
            self.consumed - self._announced < self._quarter
            and self.consumed_bytes - self._announced_bytes < self._quarter_bytes
        ):
            return False
        self._announced, self._announced_bytes = self.consumed, self.consumed_bytes
        return True
