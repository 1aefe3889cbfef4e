"""Parsers by the name that a config gives them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.actors.environment.tool_calls.call import ParsedTurn, ToolCallParser
from headrace.actors.environment.tool_calls.hermes_json import HermesJson
from headrace.actors.environment.tool_calls.python import PythonCalls
from headrace.actors.environment.tool_calls.xml import XmlCalls
from headrace.actors.session import Tool


class NoCalls:
    """For tasks without tools: nothing is a call."""

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        return ParsedTurn()


PARSERS: dict[str, type[ToolCallParser]] = {
    "none": NoCalls,
    "hermes_json": HermesJson,
    "xml": XmlCalls,
    "python": PythonCalls,
}


def make_parser(choice: str | ToolCallParser) -> ToolCallParser:
    """A built-in by name, or a parser of the reader's own as it is. Raises ValueError for anything else."""
    if isinstance(choice, str):
        if choice not in PARSERS:
            raise ValueError(f"tool_calls must be one of {', '.join(PARSERS)} or a parser object, got {choice!r}")
        return PARSERS[choice]()
    if not callable(getattr(choice, "parse", None)):
        raise ValueError(f"tool_calls must have a method parse(text, tools), got {type(choice).__name__}")
    return choice
