"""Whether anything moves in the run: judged by the metrics that all actors send, one's own actors included. Pure.

What moves is a figure that was not there before. A record with a step of its own (train, pretrain, eval, weights) is
one; of a record that comes by the clock ("wall_s") the values decide. Several actors may send one stream in turn, so a
record is compared with many of its stream, not with the last.
"""

from __future__ import annotations

from collections import OrderedDict

from headrace.actors.messages import Metrics

_REMEMBERED = 4096
_RISE = 2.0


class Progress:
    """Nothing that moved for `stall_s`, and then each time after twice as long, is to be told of; but never before
    something has moved at all. Times in seconds of one clock."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._next_s = stall_s
        self._seen: dict[str, OrderedDict[int, None]] = {}
        self._last_s: float | None = None
        self._told_since_s: float | None = None
        self.last_stream = ""
        """Of what moved last."""

    def take(self, record: Metrics, now_s: float) -> None:
        if self._is_movement(record):
            self._last_s = now_s
            self.last_stream = record.stream

    def look(self, now_s: float) -> float | None:
        """For how long nothing has moved, where that is to be told now."""
        if self._last_s is None or now_s - self._last_s < self._next_s:
            return None
        quiet_s = now_s - self._last_s
        while self._next_s <= quiet_s:
            self._next_s *= _RISE
        self._told_since_s = self._last_s
        return quiet_s

    def went_on(self) -> float | None:
        """How long nothing had moved, once, where that was told of and something moves again."""
        since_s = self._told_since_s
        if since_s is None or self._last_s is None or self._last_s <= since_s:
            return None
        self._told_since_s, self._next_s = None, self._stall_s
        return self._last_s - since_s

    def _is_movement(self, record: Metrics) -> bool:
        by_clock = record.step_name == "wall_s"
        # What is not a number is never equal to itself.
        values = tuple(sorted((name, value if value == value else None) for name, value in record.values.items()))
        figures = hash((None if by_clock else record.step, values))
        seen = self._seen.get(record.stream)
        if seen is None:
            seen = self._seen[record.stream] = OrderedDict()
            is_new = not by_clock  # how it was at the beginning
        else:
            is_new = figures not in seen
        seen[figures] = None
        seen.move_to_end(figures)
        if len(seen) > _REMEMBERED:
            seen.popitem(last=False)
        return is_new
