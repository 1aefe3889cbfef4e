"""The JSON form of Hermes and Qwen: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.actors.environment.tool_calls.call import MalformedCall, ParsedTurn, answer_part, checked_call, collect
from headrace.actors.session import Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesJson:
    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        return collect([_call(payload, closed, tools) for payload, closed in blocks(answer_part(text), OPEN, CLOSE)])


def blocks(text: str, opening: str, closing: str) -> list[tuple[str, bool]]:
    """What stands between each pair of markers, and whether the pair was closed."""
    found = []
    position = text.find(opening)
    while position >= 0:
        start = position + len(opening)
        end = text.find(closing, start)
        found.append((text[start : end if end >= 0 else len(text)], end >= 0))
        position = text.find(opening, end) if end >= 0 else -1
    return found


def _call(payload: str, closed: bool, tools: Sequence[Tool]) -> ToolCall | MalformedCall:
    if not closed:
        return MalformedCall(f"{CLOSE} is missing", payload)
    try:
        value = json.loads(payload, parse_constant=_refuse_constant)
    except RecursionError:
        return MalformedCall("the JSON is nested too deeply", payload)
    except ValueError as error:
        return MalformedCall(f"it is not valid JSON ({error})", payload)
    if not isinstance(value, dict):
        return MalformedCall('it must be a JSON object {"name": …, "arguments": {…}}', payload)
    return checked_call(value.get("name"), value.get("arguments", {}), tools, payload)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")
