"""What the turn loop asks of a renderer: tokens in, tokens out.

A session's tokens only ever grow:

    ids  = renderer.prompt_ids(messages, tools)                       # once
    ids += sampled                                                    # exactly as the engine returned them
    ids += renderer.continuation_ids(new_messages, sampled=sampled)   # what the template puts between two turns

Nothing that was sampled is decoded and encoded again, so a log-prob always belongs to the token beside it. A template
that would rewrite history (stripped reasoning, wrapped calls) is never asked to: history is what the engine saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.actors.session import ChatMessage, Tool


class Renderer(Protocol):
    """Safe to share among threads and sessions: no method changes it."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an assistant's turn; the engine stops after sampling one of them."""

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> list[int]:
        """The session's first tokens, up to where the assistant starts to speak."""

    def continuation_ids(self, messages: Sequence[ChatMessage], *, sampled: Sequence[int]) -> list[int]:
        """What follows the turn `sampled` so that the assistant may speak again: the rest of the template's closing of
        that turn (all of it where the turn was cut before its stop token), `messages`, and the next opening."""

    def answer_ids(self, before: Sequence[ChatMessage], answer: ChatMessage, tools: Sequence[Tool] = ()) -> list[int]:
        """What the assistant would have sampled to say `answer` after `before`: its text and calls as the template
        writes them, up to and with the token that ends the turn, where the template has one. For fine-tuning."""

    def text(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """The text of these tokens; the names of special tokens appear in it only where that is asked for."""


def before_stop(sampled: Sequence[int], stop_token_ids: Sequence[int]) -> list[int]:
    """What the assistant said: everything before the first stop token, in a turn that has one."""
    for index, token_id in enumerate(sampled):
        if token_id in stop_token_ids:
            return [int(i) for i in sampled[:index]]
    return [int(i) for i in sampled]
