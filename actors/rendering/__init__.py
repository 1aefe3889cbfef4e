"""From messages to tokens and back, without ever re-tokenising what a model sampled."""

from headrace.actors.rendering.chat import ChatRenderer
from headrace.actors.rendering.conversation import Conversation, conversation_ids, conversation_of
from headrace.actors.rendering.loading import RendererFactory, check_renderer, load_renderer
from headrace.actors.rendering.plain import PlainRenderer
from headrace.actors.rendering.prompt_token_ids import PromptTokenIds
from headrace.actors.rendering.renderer import Renderer, before_stop
from headrace.actors.rendering.tokenizer import ModelTokenizer

__all__ = [
    "ChatRenderer",
    "Conversation",
    "ModelTokenizer",
    "PlainRenderer",
    "PromptTokenIds",
    "Renderer",
    "RendererFactory",
    "before_stop",
    "check_renderer",
    "conversation_ids",
    "conversation_of",
    "load_renderer",
]
