"""A whole conversation as the tokens of one session, with the tokens that its assistant would have sampled marked.

The ids grow as those of a session do (renderer.py), with `answer_ids` in the place of what an engine samples: so a
model is fine-tuned on exactly the contexts in which it acts later, and the marks follow from how the ids are put
together. Nothing is searched for in rendered text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

from headrace.actors.rendering.chat_template import plain_content
from headrace.actors.rendering.renderer import Renderer
from headrace.actors.session import ChatMessage, Tool, ToolCall
from headrace.actors.session.task import Role


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()


def conversation_of(
    record: Mapping[str, Any], *, messages_field: str = "messages", tools_field: str = "tools"
) -> Conversation:
    """A chat record as it is common: `messages` of {role, content, tool_calls}, `tools` (optional) of JSON schemas; the
    arguments of a call as an object or as its JSON text. Raises ValueError for anything else, naming the message."""
    messages = record.get(messages_field)
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError(
            f"a conversation needs a list of messages under {messages_field!r}, got {messages!r:.80}; the record has "
            f"{sorted(record)}: set messages_field"
        )
    tools = record.get(tools_field) or ()
    return Conversation(
        tuple(_message(message, f"{messages_field}[{i}]") for i, message in enumerate(messages)),
        tuple(_tool(tool, f"{tools_field}[{i}]") for i, tool in enumerate(tools)),
    )


def conversation_ids(renderer: Renderer, conversation: Conversation) -> tuple[list[int], list[bool]]:
    """(token ids, which the assistant samples): up to the end of its last turn; what follows that is left out. Raises
    ValueError where no assistant speaks, where it speaks first, or twice in a row."""
    messages = conversation.messages
    turns = [i for i, message in enumerate(messages) if message.role == "assistant"]
    if not turns:
        raise ValueError("no assistant speaks in the conversation")
    if turns[0] == 0 or any(after == before + 1 for before, after in pairwise(turns)):
        raise ValueError("an assistant's turn must follow a message of another role")
    ids: list[int] = []
    mask: list[bool] = []
    answer: list[int] = []
    for number, turn in enumerate(turns):
        if number == 0:
            context = renderer.prompt_ids(messages[:turn], conversation.tools)
        else:
            context = renderer.continuation_ids(messages[turns[number - 1] + 1 : turn], sampled=answer)
            if not _stopped(answer, renderer):
                # a template that closes a turn only by the next role's marker: that marker is how the assistant stops
                ids += context[:1] if _stopped(context[:1], renderer) else renderer.stop_token_ids[:1]
                mask += [True] * (len(ids) - len(mask))
                context = context[_stopped(context[:1], renderer) :]
        answer = renderer.answer_ids(messages[:turn], messages[turn], conversation.tools)
        ids += context + answer
        mask += [False] * len(context) + [True] * len(answer)
    if not _stopped(answer, renderer):
        ids += renderer.stop_token_ids[:1]
        mask += [True] * (len(ids) - len(mask))
    return ids, mask


def _stopped(answer: Sequence[int], renderer: Renderer) -> bool:
    return bool(answer) and answer[-1] in renderer.stop_token_ids


def _message(message: Any, place: str) -> ChatMessage:
    if not isinstance(message, Mapping) or message.get("role") not in get_args(Role):
        raise ValueError(f"{place} must be an object with a role of {', '.join(get_args(Role))}, got {message!r:.100}")
    try:
        content = plain_content(message.get("content"))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    calls = message.get("tool_calls") or ()
    return ChatMessage(
        message["role"], content, tuple(_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls))
    )


def _call(call: Any, place: str) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{place} must be {{name, arguments}}, or {{function: …}} around it, got {call!r:.100}")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}.arguments is no JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{place}.arguments must be a JSON object, got {arguments!r:.100}")
    return ToolCall(function["name"], dict(arguments))


def _tool(tool: Any, place: str) -> Tool:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{place} must be {{name, description, parameters}}, got {tool!r:.100}")
    return Tool(function["name"], str(function.get("description") or ""), dict(function.get("parameters") or {}))
