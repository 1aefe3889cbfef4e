"""What an environment actor counts. Pure; the actor sends `values()` to the monitor every few seconds."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

DISCARD_ALARM_FRACTION = 0.1
"""More failed sessions than this among the recent ones raise `discard_alarm`: a defect, not bad luck."""

_RECENT_SESSIONS = 200
_RECENT_TURNS = 1000
_ALARM_AFTER_SESSIONS = 20


@dataclass(slots=True)
class SessionCounters:
    """Totals since the start, and the latencies of recent generations. `errors`: failed sessions by what was wrong."""

    sessions: int = 0
    cancelled: int = 0
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    malformed_calls: int = 0
    truncated: int = 0
    context_full: int = 0
    generation_retries: int = 0
    close_failures: int = 0
    unreported: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    turn_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_TURNS))
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT_SESSIONS))

    def finished(self) -> None:
        self.sessions += 1
        self.recent.append(True)

    def failed(self, counter: str) -> None:
        self.errors[counter] += 1
        self.recent.append(False)

    def turn(self, *, tokens_in: int, tokens_out: int, seconds: float, retries: int) -> None:
        self.turns += 1
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        self.generation_retries += retries
        self.turn_s.append(seconds)

    @property
    def discarded_fraction(self) -> float:
        """Of the recent sessions; 0 before there are any."""
        return self.recent.count(False) / len(self.recent) if self.recent else 0.0

    def values(self, *, running: int) -> dict[str, float]:
        """For the monitor. Latencies are absent until there is a turn."""
        alarm = len(self.recent) >= _ALARM_AFTER_SESSIONS and self.discarded_fraction > DISCARD_ALARM_FRACTION
        values = {
            "sessions": float(self.sessions),
            "sessions_running": float(running),
            "sessions_cancelled": float(self.cancelled),
            "turns": float(self.turns),
            "tokens_in": float(self.tokens_in),
            "tokens_out": float(self.tokens_out),
            "malformed_calls": float(self.malformed_calls),
            "truncated": float(self.truncated),
            "context_full": float(self.context_full),
            "generation_retries": float(self.generation_retries),
            "close_failures": float(self.close_failures),
            "unreported": float(self.unreported),
            "errors": float(self.errors.total()),
            "discarded_fraction": self.discarded_fraction,
            "discard_alarm": float(alarm),
        }
        values |= {f"errors/{name}": float(count) for name, count in self.errors.items()}
        if self.turn_s:
            ordered = sorted(self.turn_s)
            values["turn_s_p50"] = ordered[len(ordered) // 2]
            values["turn_s_p95"] = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        return values
