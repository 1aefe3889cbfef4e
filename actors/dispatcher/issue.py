"""Makes the next group of sessions out of the task source: ids, seeds, and the tasks that are set aside. Pure."""

from __future__ import annotations

from headrace.actors.dispatcher.seeds import session_seed
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.session import Sampling, SessionSpec, Task

_MAX_SKIPPED_TASKS = 10_000


class GroupIssuer:
    """The cursor into the task source. Groups are numbered in the order of issue; `group_id` is that number, so that
    two groups of one prompt never meet. `quarantined`: task id → why no group of it is issued any more."""

    def __init__(self, settings: TrainingSettings, tasks: TaskSource) -> None:
        self._settings = settings
        self._tasks = tasks
        self.next_task = 0
        self.num_groups = 0
        self.quarantined: dict[str, str] = {}

    def quarantine(self, task_id: str, why: str) -> None:
        self.quarantined[task_id] = why[:300]

    def next_group(self) -> list[SessionSpec]:
        """The sessions of the next group, on the next task that is not quarantined."""
        index, task = self._draw()
        group_id = f"g{self.num_groups:07d}"
        self.num_groups += 1
        return [self._spec(group_id, member, task, index) for member in range(self._settings.group_size)]

    def _draw(self) -> tuple[int, Task]:
        for index in range(self.next_task, self.next_task + _MAX_SKIPPED_TASKS):
            task = self._tasks.task(index)
            if task.task_id not in self.quarantined:
                self.next_task = index + 1
                return index, task
        task_id, why = next(iter(self.quarantined.items()))
        raise RuntimeError(
            f"the next {_MAX_SKIPPED_TASKS} tasks are all quarantined (e.g. {task_id}: {why}); no task can be run: "
            "see the logs of the environments and graders"
        )

    def _spec(self, group_id: str, member: int, task: Task, index: int) -> SessionSpec:
        sampling = Sampling(
            temperature=self._settings.temperature,
            max_tokens=self._settings.max_tokens,
            seed=session_seed(self._settings.seed, "train", index, member),
        )
        return SessionSpec(f"{group_id}-{member:02d}", group_id, member, "train", task, sampling)
