"""Which renderer a config means: by name, or a class of the reader's own."""

from __future__ import annotations

from collections.abc import Callable

from headrace.actors.rendering.chat import ChatRenderer
from headrace.actors.rendering.plain import PlainRenderer
from headrace.actors.rendering.renderer import Renderer
from headrace.actors.rendering.tokenizer import ModelTokenizer

RendererFactory = Callable[[ModelTokenizer], Renderer]
RENDERERS = ("auto", "chat", "plain")


def load_renderer(choice: str | RendererFactory, model_path: str) -> Renderer:
    """ "auto" takes the chat template where the model folder has one. A callable (in YAML: `_partial_: true`) gets the
    folder's tokenizer. Raises ValueError for an unknown name, FileNotFoundError for a folder without tokenizer."""
    check_renderer(choice)
    tokenizer = ModelTokenizer.from_folder(model_path)
    if callable(choice):
        return choice(tokenizer)
    if choice == "chat" or (choice == "auto" and tokenizer.chat_template is not None):
        return ChatRenderer(tokenizer)
    return PlainRenderer(tokenizer)


def check_renderer(choice: object) -> None:
    """Raises ValueError with the allowed values, before anything is loaded."""
    if not callable(choice) and choice not in RENDERERS:
        raise ValueError(
            f"renderer must be one of {', '.join(RENDERERS)} or a _partial_ of a renderer class, got {choice!r}"
        )
