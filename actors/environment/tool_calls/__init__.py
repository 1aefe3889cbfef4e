"""Tool calls out of an assistant's text, as models write them. A malformed call is data, never an exception."""

from headrace.actors.environment.tool_calls.call import MalformedCall, ParsedTurn, ToolCallParser, quoted
from headrace.actors.environment.tool_calls.choice import PARSERS, make_parser
from headrace.actors.environment.tool_calls.hermes_json import HermesJson
from headrace.actors.environment.tool_calls.python import PythonCalls
from headrace.actors.environment.tool_calls.xml import XmlCalls

__all__ = [
    "PARSERS",
    "HermesJson",
    "MalformedCall",
    "ParsedTurn",
    "PythonCalls",
    "ToolCallParser",
    "XmlCalls",
    "make_parser",
    "quoted",
]
