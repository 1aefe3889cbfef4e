"""Makes the next group of sessions out of the task source: ids, seeds, and the tasks that are set aside. Pure.

A session is a function of its group's number, its member and its task's index: the journal keeps those, and `spec`
makes it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from headrace.actors.dispatcher.curriculum import MAX_SKIPPED, InOrder, TaskOrder
from headrace.actors.dispatcher.seeds import session_seed
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.session import Sampling, SessionSpec, Task


class GroupIssuer:
    """The cursor into the task source. Groups are numbered in the order of issue; `group_id` is that number, so that
    two groups of one prompt never meet. `again`: indices of tasks that come before the next. `quarantined`: task id →
    why no group of it is issued any more."""

    def __init__(self, settings: TrainingSettings, tasks: TaskSource, order: TaskOrder | None = None) -> None:
        self._settings = settings
        self._tasks = tasks
        self.order: TaskOrder = order or InOrder()
        self.next_task = 0
        self.num_groups = 0
        self.again: deque[int] = deque()
        self.quarantined: dict[str, str] = {}

    def quarantine(self, task_id: str, why: str) -> None:
        self.quarantined[task_id] = why[:300]

    def next_group(self) -> tuple[int, list[SessionSpec]]:
        """The next task that is not quarantined, by its index, and the sessions of its group. Those that come again are
        first."""
        index = self._draw()
        group_id = f"g{self.num_groups:07d}"
        self.num_groups += 1
        return index, [self.spec(group_id, member, index) for member in range(self._settings.issued_per_group)]

    def spec(self, group_id: str, member: int, task_index: int) -> SessionSpec:
        sampling = Sampling(
            temperature=self._settings.temperature,
            max_tokens=self._settings.max_tokens,
            seed=session_seed(self._settings.seed, "train", task_index, member),
        )
        task = self._tasks.task(task_index)
        return SessionSpec(f"{group_id}-{member:02d}", group_id, member, "train", task, sampling)

    def issue_again(self, indices: Iterable[int]) -> None:
        """These tasks come next, once each and in this order: what was made of them was lost with a learner."""
        for index in indices:
            if index not in self.again:
                self.again.append(index)

    def rewind(self, next_task: int) -> None:
        """Every task from that index on is drawn again, in order."""
        self.again.clear()
        self.order.rewind()
        self.next_task = next_task

    def restore(
        self,
        *,
        next_task: int,
        again: Iterable[int],
        num_groups: int,
        quarantined: dict[str, str],
        order: dict[str, Any],
    ) -> None:
        self.next_task, self.num_groups, self.quarantined = next_task, num_groups, dict(quarantined)
        self.again = deque(again)
        self.order.load_state_dict(order)

    def _draw(self) -> int:
        while self.again:
            index = self.again.popleft()
            if self._tasks.task(index).task_id not in self.quarantined:
                return index
        drawn, self.next_task = self.order.draw(self.next_task, self._issuable)
        if drawn is not None:
            return drawn
        quarantined = [f"{task_id} is quarantined: {why}" for task_id, why in self.quarantined.items()]
        raise RuntimeError(
            f"of the next {MAX_SKIPPED} tasks none can be issued: {len(quarantined)} are quarantined"
            f"{f' (e.g. {quarantined[0]}; see the logs of the environments and graders)' if quarantined else ''}, the "
            "others are set aside for being solved always or never (dispatcher.order.revisit_every)"
        )

    def _issuable(self, index: int) -> Task | None:
        task = self._tasks.task(index)
        return None if task.task_id in self.quarantined else task


def group_number(group_id: str) -> int:
    """The place of a group in the order of issue."""
    return int(group_id.removeprefix("g"))
