"""In which order tasks are issued, by how sessions of them fared: those of which there is something to learn.

A group whose sessions all succeed, or all fail, has no gradient. `BySuccess` sets prompts aside that keep making such
groups, and prefers classes of tasks that succeed about as often as not. Pure; called by issue.py, its state is
journalled with the cursor, and every index is issued once at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.actors.dispatcher.groups import Verdict
from headrace.actors.session import Task

MAX_SKIPPED = 10_000
"""tasks in a row that may not be issued: then there are none"""


class TaskOrder(Protocol):
    def draw(self, next_task: int, may: Callable[[int], Task | None]) -> tuple[int | None, int]:
        """The next index to issue, and the cursor behind what was looked at. `may`: the task of an index, None where it
        is quarantined. None: of MAX_SKIPPED tasks not one may be issued."""

    def judged(self, task: Task, rate: float, verdict: Verdict) -> None:
        """A group of that task is complete; `rate` of its sessions passed."""

    def rewind(self) -> None:
        """What was looked at is drawn anew."""

    def figures(self) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Any]:
        """JSON values."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class InOrder:
    """As the source has them."""

    def draw(self, next_task: int, may: Callable[[int], Task | None]) -> tuple[int | None, int]:
        for index in range(next_task, next_task + MAX_SKIPPED):
            if may(index) is not None:
                return index, index + 1
        return None, next_task

    def judged(self, task: Task, rate: float, verdict: Verdict) -> None:
        pass

    def rewind(self) -> None:
        pass

    def figures(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class BySuccess:
    """set_aside_after: so many groups in a row of one prompt that all pass, or all fail, set it aside; 0 never does.
    revisit_every: a prompt that is aside has one group each so many times that it comes up (epochs), and is back where
    that group is of another kind; 0 never.
    target: of `window` tasks that come next, the one whose class (Task.source) has a success rate nearest to this comes
    first; a class of which nothing is known is tried. None: in order. patience: a task waits for so many windows at
    most. memory: how much of a class's rate the next group leaves as it was.
    """

    def __init__(
        self,
        *,
        set_aside_after: int = 2,
        revisit_every: int = 4,
        target: float | None = None,
        window: int = 32,
        patience: int = 4,
        memory: float = 0.9,
    ) -> None:
        for name, value, least in (
            ("set_aside_after", set_aside_after, 0),
            ("revisit_every", revisit_every, 0),
            ("window", window, 1),
            ("patience", patience, 1),
        ):
            if value < least:
                raise ValueError(f"dispatcher.order.{name} must be >= {least}, got {value}")
        if target is not None and not 0 <= target <= 1:
            raise ValueError(f"dispatcher.order.target must be from 0 to 1, or null, got {target}")
        if not 0 <= memory < 1:
            raise ValueError(f"dispatcher.order.memory must be >= 0 and < 1, got {memory}")
        self._set_aside_after = set_aside_after
        self._revisit_every = revisit_every
        self.target = target
        self._window = 1 if target is None else window
        self._patience = patience * self._window
        self._memory = memory
        self._rates: dict[str, float] = {}
        self._streaks: dict[str, list[Any]] = {}  # task id → verdict, groups in a row
        self._aside: dict[str, list[Any]] = {}  # task id → verdict, times that it came up since
        self._waiting: list[list[int]] = []  # index, draws that it has waited for; the oldest first

    def draw(self, next_task: int, may: Callable[[int], Task | None]) -> tuple[int | None, int]:
        """See TaskOrder."""
        waiting = [(entry, task) for entry in self._waiting if (task := may(entry[0])) is not None]
        skipped = 0
        while len(waiting) < self._window and skipped < MAX_SKIPPED:
            task = may(next_task)
            if task is None or self._is_passed_over(task):
                skipped += 1
            else:
                waiting.append(([next_task, 0], task))
            next_task += 1
        if not waiting:
            return None, next_task
        chosen = min(range(len(waiting)), key=lambda place: self._rank(place, *waiting[place]))
        entry, _ = waiting.pop(chosen)
        self._waiting = [[index, waited + 1] for (index, waited), _ in waiting]
        return entry[0], next_task

    def _rank(self, place: int, entry: list[int], task: Task) -> tuple[bool, float, int]:
        rate = self._rates.get(task.source)
        away = 0.0 if rate is None or self.target is None else abs(rate - self.target)
        return entry[1] < self._patience, away, place

    def _is_passed_over(self, task: Task) -> bool:
        """Counts it where it is aside."""
        aside = self._aside.get(task.task_id)
        if aside is None:
            return False
        aside[1] += 1
        if not self._revisit_every or aside[1] < self._revisit_every:
            return True
        aside[1] = 0
        return False

    def judged(self, task: Task, rate: float, verdict: Verdict) -> None:
        """See TaskOrder."""
        before = self._rates.get(task.source, rate)
        self._rates[task.source] = self._memory * before + (1 - self._memory) * rate
        if not self._set_aside_after:
            return
        if verdict not in ("all_pass", "all_fail"):
            self._streaks.pop(task.task_id, None)
            self._aside.pop(task.task_id, None)
            return
        streak = self._streaks.setdefault(task.task_id, [verdict, 0])
        if streak[0] != verdict:
            streak[:] = [verdict, 0]
            self._aside.pop(task.task_id, None)
        streak[1] += 1
        if streak[1] >= self._set_aside_after:
            self._aside.setdefault(task.task_id, [verdict, 0])

    def rewind(self) -> None:
        """See TaskOrder."""
        self._waiting.clear()

    def figures(self) -> dict[str, float]:
        """Prompts that are aside, and the success rate of each class of tasks."""
        aside = [verdict for verdict, _ in self._aside.values()]
        return {
            "aside/solved": float(aside.count("all_pass")),
            "aside/never_solved": float(aside.count("all_fail")),
            **{f"success/{source}": rate for source, rate in sorted(self._rates.items())},
        }

    def state_dict(self) -> dict[str, Any]:
        """See TaskOrder."""
        return {
            "rates": dict(self._rates),
            "streaks": {task: list(streak) for task, streak in self._streaks.items()},
            "aside": {task: list(aside) for task, aside in self._aside.items()},
            "waiting": [list(entry) for entry in self._waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of the same settings, or others; {} begins anew."""
        self._rates = dict(state.get("rates", {}))
        self._streaks = {task: list(streak) for task, streak in state.get("streaks", {}).items()}
        self._aside = {task: list(aside) for task, aside in state.get("aside", {}).items()}
        self._waiting = [list(entry) for entry in state.get("waiting", [])]
