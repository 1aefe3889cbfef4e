"""From messages to tokens and back, without ever re-tokenising what a model sampled."""

from headrace.actors.environment.rendering.chat import ChatRenderer
from headrace.actors.environment.rendering.loading import RendererFactory, check_renderer, load_renderer
from headrace.actors.environment.rendering.plain import PlainRenderer
from headrace.actors.environment.rendering.prompt_token_ids import PromptTokenIds
from headrace.actors.environment.rendering.renderer import Renderer, before_stop
from headrace.actors.environment.rendering.tokenizer import ModelTokenizer

__all__ = [
    "ChatRenderer",
    "ModelTokenizer",
    "PlainRenderer",
    "PromptTokenIds",
    "Renderer",
    "RendererFactory",
    "before_stop",
    "check_renderer",
    "load_renderer",
]
