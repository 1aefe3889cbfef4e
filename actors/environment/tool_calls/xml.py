"""The XML-like form of coding models: <function=add><parameter=a>1</parameter></function>, inside <tool_call> or bare.

It is not XML: values stand unescaped, so that code needs no quoting. A value is text where the tool's schema says
"string", and JSON otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from headrace.actors.environment.tool_calls.call import (
    MalformedCall,
    ParsedTurn,
    answer_part,
    checked_call,
    collect,
    shortened,
)
from headrace.actors.environment.tool_calls.hermes_json import blocks
from headrace.actors.session import Tool, ToolCall

OPEN, CLOSE = "<function=", "</function>"
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


class XmlCalls:
    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        answer = answer_part(text)
        found = [_call(payload, closed, tools) for payload, closed in blocks(answer, OPEN, CLOSE)]
        if not found and "<tool_call>" in answer:
            found = [MalformedCall(f"<tool_call> without {OPEN}NAME>…{CLOSE}", answer)]
        return collect(found)


def _call(block: str, closed: bool, tools: Sequence[Tool]) -> ToolCall | MalformedCall:
    payload = OPEN + block
    name, has_name, body = block.partition(">")
    if not has_name or "\n" in name:
        return MalformedCall(f"{OPEN}NAME> is not closed", payload)
    if not closed:
        return MalformedCall(f"{CLOSE} is missing", payload)
    rest = _PARAMETER.sub("", body)
    if rest.strip():
        return MalformedCall("between the function's tags only <parameter=NAME>…</parameter> may stand", payload)
    types = _types(name.strip(), tools)
    arguments: dict[str, object] = {}
    for match in _PARAMETER.finditer(body):
        key = match.group(1).strip()
        if key in arguments:
            return MalformedCall(f"the parameter {shortened(key)} is given twice", payload)
        try:
            arguments[key] = _value(match.group(2), types.get(key, "string"))
        except (ValueError, RecursionError):
            return MalformedCall(f"the parameter {shortened(key)} must be of type {types[key]} (JSON)", payload)
    return checked_call(name.strip(), arguments, tools, payload)


def _value(text: str, kind: str) -> object:
    """One newline after the opening tag and one before the closing tag are layout, not content."""
    text = text.removeprefix("\n").removesuffix("\n")
    return text if kind == "string" else json.loads(text)


def _types(name: str, tools: Sequence[Tool]) -> dict[str, str]:
    for tool in tools:
        properties = tool.parameters.get("properties")
        if tool.name == name and isinstance(properties, dict):
            return {
                key: str(schema.get("type", "string")) for key, schema in properties.items() if isinstance(schema, dict)
            }
    return {}
