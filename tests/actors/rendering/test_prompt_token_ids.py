"""Held-out prompts as an environment would open their sessions."""

from __future__ import annotations

import pytest

from headrace.actors.rendering import PromptTokenIds, load_renderer
from headrace.actors.session import ChatMessage, Task


class Source:
    def held_out(self, num: int) -> list[Task]:
        return [Task(f"held_out/{i}", "test", (ChatMessage("user", "hello" * (i + 1)),)) for i in range(num)]


@pytest.mark.parametrize("renderer", ["auto", "plain"])
def test_they_are_what_the_environments_renderer_makes(model_folder, renderer):
    ids = PromptTokenIds(source=Source(), model_path=str(model_folder), num=3, renderer=renderer)()
    ours = load_renderer(renderer, str(model_folder))
    assert ids == [ours.prompt_ids(task.prompt) for task in Source().held_out(3)]


def test_bad_arguments_are_named(model_folder):
    with pytest.raises(ValueError, match="num must be >= 1, got 0"):
        PromptTokenIds(source=Source(), model_path=str(model_folder), num=0)
    with pytest.raises(ValueError, match="renderer must be one of auto"):
        PromptTokenIds(source=Source(), model_path=str(model_folder), renderer="jinja")
