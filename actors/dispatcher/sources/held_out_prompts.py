"""The texts of a source's held-out prompts, for whoever must not train on them (a pre-training corpus)."""

from __future__ import annotations

from headrace.actors.dispatcher.source import TaskSource


class HeldOutPrompts:
    """Called without arguments: the content of the last message of each of the first `num` held-out prompts of
    `source`."""

    def __init__(self, *, source: TaskSource, num: int) -> None:
        if num < 0:
            raise ValueError(f"num must be >= 0, got {num}")
        self._source = source
        self._num = num

    def __call__(self) -> list[str]:
        return [task.prompt[-1].content for task in self._source.held_out(self._num)]
