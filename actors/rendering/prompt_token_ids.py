"""The token ids of a source's held-out prompts, as an environment would open a session with them: for whoever sends
prompts of the run's own kind to an engine (the log-prob probe)."""

from __future__ import annotations

from typing import Protocol

from headrace.actors.rendering.loading import RendererFactory, check_renderer, load_renderer
from headrace.actors.session import Task


class HeldOutTasks(Protocol):
    def held_out(self, num: int) -> list[Task]:
        """Always the same list."""


class PromptTokenIds:
    """Called without arguments: the token ids of the first `num` held-out prompts of `source`. `model_path`: the folder
    with the tokenizer, read at the call. `renderer`: as of the environment."""

    def __init__(
        self, *, source: HeldOutTasks, model_path: str, num: int = 16, renderer: str | RendererFactory = "auto"
    ) -> None:
        if num < 1:
            raise ValueError(f"num must be >= 1, got {num}")
        check_renderer(renderer)
        self._source = source
        self._model_path = model_path
        self._num = num
        self._renderer = renderer

    def __call__(self) -> list[list[int]]:
        renderer = load_renderer(self._renderer, self._model_path)
        return [renderer.prompt_ids(task.prompt) for task in self._source.held_out(self._num)]
