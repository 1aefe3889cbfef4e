"""Rendering without a template: the messages' texts one after another. For models made from scratch."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.actors.rendering.chat_template import plain_content
from headrace.actors.rendering.edges import bos_id, stop_ids, with_bos
from headrace.actors.rendering.tokenizer import ModelTokenizer
from headrace.actors.session import ChatMessage, Tool


class PlainRenderer:
    """`add_bos` None: as the tokenizer does by itself. `stop_tokens`: names of tokens that end a turn, beside the EOS
    tokens of the model's files. Tools are not shown to the model: it is trained to know them."""

    def __init__(
        self, tokenizer: ModelTokenizer, *, add_bos: bool | None = None, stop_tokens: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._bos = bos_id(tokenizer, add_bos)
        self._stop_token_ids = tuple(dict.fromkeys([*tokenizer.eos_token_ids, *stop_ids(tokenizer, stop_tokens)]))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> list[int]:
        return with_bos(self._tokenizer.encode(_joined(messages)), self._bos)

    def continuation_ids(self, messages: Sequence[ChatMessage], *, sampled: Sequence[int]) -> list[int]:
        return self._tokenizer.encode(_joined(messages))

    def answer_ids(self, before: Sequence[ChatMessage], answer: ChatMessage, tools: Sequence[Tool] = ()) -> list[int]:
        """The text and the first stop token. Raises ValueError for tool calls: there is no form to write them in."""
        if answer.tool_calls:
            raise ValueError(
                "renderer: plain has no form for tool calls; write them into the content, or use a chat template"
            )
        return self._tokenizer.encode(plain_content(answer.content)) + list(self._stop_token_ids[:1])

    def text(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        return self._tokenizer.decode(token_ids, special_tokens=special_tokens)


def _joined(messages: Sequence[ChatMessage]) -> str:
    return "".join(plain_content(message.content) for message in messages)
