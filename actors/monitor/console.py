"""The line that a person watches: progress, rewards, rates, lag, who is busy. Pure text, no terminal control."""

from __future__ import annotations

from headrace.actors.messages import Metrics
from headrace.actors.monitor.activity import Shares


class ConsoleLine:
    """Keeps the newest values of each stream, and rates since the line before. A figure that nobody sent is left
    out."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, float]] = {}
        self._steps: dict[str, float] = {}
        self._pauses_s: list[float] = []
        self._before: tuple[float, float, float] | None = None
        self._began: dict[str, tuple[float, float]] = {}

    def take(self, record: Metrics) -> None:
        self._latest.setdefault(record.stream, {}).update(record.values)
        self._steps[record.stream] = record.step
        if record.stream == "weights" and "pause_s" in record.values:
            self._pauses_s.append(record.values["pause_s"])

    def line(self, *, time_s: float, roles: dict[str, Shares]) -> str:
        """One line for the time `time_s` (seconds since the start)."""
        parts = [_clock(int(time_s))]
        parts += self._progress(time_s)
        parts += self._rates(time_s)
        if self._pauses_s:
            parts.append(f"pause {1000 * sorted(self._pauses_s)[len(self._pauses_s) // 2]:.0f} ms")
            self._pauses_s = []
        busy = [f"{role} {100 * s.busy:.0f}%" for role, s in roles.items() if role in _SHOWN_ROLES]
        if busy:
            parts.append("busy " + " ".join(busy))
        return " · ".join(parts)

    def _progress(self, time_s: float) -> list[str]:
        parts = []
        for stream, label in (("pretrain", "pretrain"), ("sft", "sft"), ("train", "step")):
            if stream in self._steps and not self._is_over(stream):
                parts.append(f"{label} {self._of_total(stream, time_s)}")
        dispatcher = self._latest.get("dispatcher", {})
        if dispatcher.get("version", 0) > 0:
            parts.append(f"version {dispatcher['version']:.0f}")
        for stream, name, label, digits in _SHOWN:
            value = self._latest.get(stream, {}).get(name)
            if value is not None and not self._is_over(stream):
                parts.append(f"{label} {value:.{digits}f}")
        parts += self._missing()
        if dispatcher.get("evaluation/sessions", 0.0) > 0:
            parts.append(
                f"evaluated {dispatcher.get('evaluation/ended', 0):.0f}/{dispatcher['evaluation/sessions']:.0f}"
            )
        if dispatcher.get("issued", 0.0) > 0:
            parts.append(f"sessions {dispatcher.get('running', 0):.0f} running {dispatcher.get('ready', 0):.0f} ready")
        return parts

    def _of_total(self, stream: str, time_s: float) -> str:
        """Steps done, of how many, and how long the rest takes at the pace so far."""
        step, total = self._steps[stream], self._latest[stream].get("steps_total")
        if total is None:
            return f"{step:.0f}"
        began_s, first = self._began.setdefault(stream, (time_s, step))
        if step <= first or step >= total:
            return f"{step:.0f}/{total:.0f}"
        left_s = (total - step) * (time_s - began_s) / (step - first)
        return f"{step:.0f}/{total:.0f} ({_clock(left_s)} left)"

    def _missing(self) -> list[str]:
        """Shares of sessions without a reward, where there are any: the rewards above leave them out."""
        dispatcher, evaluation = self._latest.get("dispatcher", {}), self._latest.get("eval", {})
        shares = (
            ("no reward", dispatcher.get("graded_without_reward", 0.0), dispatcher.get("graded", 0.0)),
            ("held-out missing", evaluation.get("missing", 0.0), evaluation.get("sessions", 0.0)),
        )
        return [f"{label} {max(0.001, count / of):.1%}" for label, count, of in shares if count > 0 and of > 0]

    def _is_over(self, stream: str) -> bool:
        later = _STAGES[_STAGES.index(stream) + 1 :] if stream in _STAGES else ()
        return any(stage in self._steps for stage in later)

    def _rates(self, time_s: float) -> list[str]:
        dispatcher = self._latest.get("dispatcher", {})
        ended = dispatcher.get("trained", 0.0) + dispatcher.get("dropped", 0.0)
        tokens = dispatcher.get("trained_tokens", 0.0) + dispatcher.get("wasted_tokens", 0.0)
        before, self._before = self._before, (time_s, ended, tokens)
        if before is None or time_s <= before[0] or dispatcher.get("issued", 0.0) == 0:
            return []
        elapsed_s = time_s - before[0]
        return [f"{(ended - before[1]) / elapsed_s:.0f} samples/s", f"{(tokens - before[2]) / elapsed_s:.0f} tokens/s"]


def _clock(seconds: float) -> str:
    """m:ss, from an hour on h:mm:ss, from four days on days."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 96:
        return f"{hours // 24} days"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


_SHOWN = (
    ("pretrain", "loss", "loss", 3),
    ("sft", "loss", "loss", 3),
    ("train", "reward/mean", "reward", 3),
    ("eval", "reward", "held-out", 3),
    ("eval", "greedy", "greedy", 3),
    ("train", "lag/token_mean", "lag", 1),
    ("train", "ess/token", "ess", 2),
)
"""(stream, name, label, digits)"""

_STAGES = ("pretrain", "sft", "train")
"""in their order"""

_SHOWN_ROLES = ("learner", "generator", "environment", "grader")
