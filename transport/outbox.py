"""What one lane sends to one peer: a message that stands alone at once, what comes in quick succession together at the
end of the loop's tick, as one network message."""

from __future__ import annotations

from collections.abc import Callable

_BATCH_MAX_ENVELOPES = 32
"""Few enough that a peer works on the first of many messages while the last are still being made."""
_ALONE_S = 20e-6
"""A message this long after the last one stands alone."""


class Outbox:
    """`send` sends envelopes as one batch, of at most `max_bytes` unless one alone has more; `mark_dirty` has `flush`
    called at the end of the tick."""

    __slots__ = ("_envelopes", "_mark_dirty", "_max_bytes", "_now", "_send", "last_s", "nbytes")

    def __init__(
        self,
        max_bytes: int,
        *,
        now: Callable[[], float],
        send: Callable[[list[bytes]], None],
        mark_dirty: Callable[[], None],
    ) -> None:
        self._max_bytes = max_bytes
        self._now = now
        self._send = send
        self._mark_dirty = mark_dirty
        self._envelopes: list[bytes] = []
        self.last_s = float("-inf")
        """when something was put in last"""
        self.nbytes = 0
        """of what waits"""

    def put(self, packed: bytes, nbytes: int) -> None:
        """`nbytes`: of the envelope and of what it refers to."""
        now_s = self._now()
        alone = now_s - self.last_s > _ALONE_S
        self.last_s = now_s
        envelopes = self._envelopes
        if not envelopes:
            if alone:
                self._send([packed])
                return
            self._mark_dirty()
        elif self.nbytes + nbytes > self._max_bytes or len(envelopes) >= _BATCH_MAX_ENVELOPES:
            self.flush()
            self._mark_dirty()
            envelopes = self._envelopes
        envelopes.append(packed)
        self.nbytes += nbytes

    def flush(self) -> None:
        if self._envelopes:
            envelopes, self._envelopes, self.nbytes = self._envelopes, [], 0
            self._send(envelopes)

    def clear(self) -> None:
        self._envelopes, self.nbytes = [], 0
