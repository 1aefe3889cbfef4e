"""What a parser returns: the calls that can be executed, and those that cannot with a reason for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.actors.session import ChatMessage, Tool, ToolCall

MAX_QUOTED_CHARS = 800
"""A bad payload is quoted back to the model up to this length: quoting all of it would fill the context."""


def quoted(payload: str) -> str:
    """The payload, at most MAX_QUOTED_CHARS of it, with its true length where it was cut."""
    if len(payload) <= MAX_QUOTED_CHARS:
        return payload
    return f"{payload[:MAX_QUOTED_CHARS]}\n(the first {MAX_QUOTED_CHARS} of {len(payload)} characters)"


def shortened(name: str) -> str:
    """A name that the model made up, for a sentence about it."""
    return name if len(name) <= 40 else f"{name[:40]}…"


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """`payload`: what the model wrote; `reason`: what is wrong with it, in words for the model."""

    reason: str
    payload: str

    def observation(self) -> ChatMessage:
        """What the model sees in place of a tool's output."""
        return ChatMessage(
            "tool", f"Malformed tool call: {self.reason}. Nothing was executed. You wrote:\n{quoted(self.payload)}"
        )


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()


class ToolCallParser(Protocol):
    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        """`text`: an assistant's turn with the names of special tokens in it; `tools`: those on offer. Never raises."""


def answer_part(text: str) -> str:
    """The text after the model's reasoning; "" while the reasoning is not closed. What a model considers is no call."""
    _, closed, after = text.rpartition("</think>")
    if closed:
        return after
    return "" if "<think>" in text else text


def collect(found: Sequence[ToolCall | MalformedCall]) -> ParsedTurn:
    """In the order of the text."""
    return ParsedTurn(
        calls=tuple(call for call in found if isinstance(call, ToolCall)),
        malformed=tuple(call for call in found if isinstance(call, MalformedCall)),
    )


def checked_call(name: object, arguments: object, tools: Sequence[Tool], payload: str) -> ToolCall | MalformedCall:
    """A call of a known tool with an object of arguments that has what the tool's schema requires."""
    by_name = {tool.name: tool for tool in tools}
    if not isinstance(name, str) or not name:
        return MalformedCall('it has no "name"', payload)
    if name not in by_name:
        return MalformedCall(
            f'there is no tool "{shortened(name)}"; the tools are: {", ".join(by_name) or "none"}', payload
        )
    if not isinstance(arguments, Mapping):
        return MalformedCall("the arguments must be an object", payload)
    missing = [key for key in _required(by_name[name]) if key not in arguments]
    if missing:
        return MalformedCall(f"{name} needs the argument(s) {', '.join(missing)}", payload)
    return ToolCall(name, {str(key): value for key, value in arguments.items()})


def _required(tool: Tool) -> list[str]:
    required = tool.parameters.get("required", ())
    return [str(key) for key in required] if isinstance(required, list | tuple) else []
