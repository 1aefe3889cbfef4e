"""A Hugging Face chat template as a function from messages to text, in the same Jinja dialect as transformers.

Templates come from model folders, so they run in Jinja's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.actors.session import ChatMessage, Tool


class ChatTemplate:
    """`arguments` are variables that the template may know ("enable_thinking", "date_string", …)."""

    def __init__(self, source: str, arguments: Mapping[str, object]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, LoopControlExtension]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._arguments = dict(arguments)

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], *, generation_prompt: bool) -> str:
        """Raises jinja2.TemplateError where the template refuses the messages."""
        return self._template.render(
            messages=[_template_message(message) for message in messages],
            tools=[_template_tool(tool) for tool in tools] or None,
            documents=None,
            add_generation_prompt=generation_prompt,
            **self._arguments,
        )


def plain_content(content: object) -> str:
    """One string for both forms of a message's content: text, or a list of text parts (joined with nothing between).

    Templates treat the two forms differently (an extra newline is enough to break a prefix), so they only see strings.
    Raises ValueError for a part that is not text.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return "".join(_part_text(part) for part in content)
    raise ValueError(f"a message's content must be a string or a list of text parts, got {type(content).__name__}")


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ValueError(f'a content part must be {{"type": "text", "text": …}}, got {str(part)[:200]}')


def _template_message(message: ChatMessage) -> dict[str, object]:
    rendered: dict[str, object] = {"role": message.role, "content": plain_content(message.content)}
    if message.tool_calls:
        rendered["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return rendered


def _template_tool(tool: Tool) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's text for other programs; here it only renders."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own attribute)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML characters, which a model was never trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
