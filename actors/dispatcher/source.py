"""What a task source is: an endless, seekable sequence of tasks, and a fixed list of held-out ones."""

from __future__ import annotations

from typing import Protocol

from headrace.actors.session import Task


class TaskSource(Protocol):
    def task(self, index: int) -> Task:
        """Training task number `index` (0, 1, …). Pure: the same index gives the same task in every process."""

    def held_out(self, num: int) -> list[Task]:
        """`num` evaluation tasks, none of whose prompts occurs among the training tasks. Always the same list."""

    def fingerprint(self) -> str:
        """A hash of everything that determines the tasks: goes into the report and the checkpoint."""
