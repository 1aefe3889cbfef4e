"""The Python-like form: a turn that is a list of calls with literal keyword arguments, [add(a=1, b=2), now()].

Parsed as a syntax tree, never evaluated. A list that does not begin with a call is an answer, not a call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from headrace.actors.environment.tool_calls.call import MalformedCall, ParsedTurn, answer_part, checked_call, collect
from headrace.actors.session import Tool, ToolCall

MAX_CALL_CHARS = 65_536
"""Python's parser is written in C and recurses: longer texts are refused before it sees them."""
_BEGINS_LIKE_A_CALL = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")


class PythonCalls:
    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedTurn:
        payload = answer_part(text).strip().removeprefix("<|python_tag|>").strip()
        if not _BEGINS_LIKE_A_CALL.match(payload):
            return ParsedTurn()
        if len(payload) > MAX_CALL_CHARS:
            return collect([MalformedCall(f"it is longer than {MAX_CALL_CHARS} characters", payload)])
        try:
            tree = ast.parse(payload, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return collect([MalformedCall(f"it is not valid Python ({type(error).__name__})", payload)])
        if not isinstance(tree, ast.List):
            return collect([MalformedCall("it must be a list of calls", payload)])
        return collect([_call(node, payload, tools) for node in tree.elts])


def _call(node: ast.expr, payload: str, tools: Sequence[Tool]) -> ToolCall | MalformedCall:
    written = ast.get_source_segment(payload, node) or payload
    if not isinstance(node, ast.Call):
        return MalformedCall("each element must be a call, name(key=value)", written)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return MalformedCall("arguments must be given by keyword, name(key=value)", written)
    try:
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return MalformedCall("argument values must be literals", written)
    return checked_call(ast.unparse(node.func), arguments, tools, written)
