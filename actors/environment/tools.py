"""Small tools for multi-turn tasks: a calculator, and a table that only a tool can read."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from headrace.actors.session import Task, Tool

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class Calculator:
    """Arithmetic with + - * / // % and brackets. No powers: a short text must not cost unbounded time."""

    def __init__(self, *, name: str = "calculator", max_chars: int = 200) -> None:
        self._max_chars = max_chars
        self.tool = Tool(
            name,
            "Evaluates an arithmetic expression, such as 2*(3+4).",
            {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
        )

    def call(self, arguments: dict[str, object], task: Task) -> str:
        """Raises ValueError for anything that is not arithmetic, ZeroDivisionError for a division by zero."""
        expression = str(arguments["expression"])
        if len(expression) > self._max_chars:
            raise ValueError(f"an expression has at most {self._max_chars} characters, got {len(expression)}")
        try:
            tree = ast.parse(expression.strip(), mode="eval")
        except SyntaxError:
            raise ValueError(f"{expression!r} is not arithmetic") from None
        return str(_value(tree.body))


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    raise ValueError(f"{ast.unparse(node)} is not arithmetic; only numbers, + - * / // % and brackets are")


class Lookup:
    """Values by key: from the task's own `entry[entry_key]` where it has one (a JSON object), else from `table`."""

    def __init__(
        self, *, table: Mapping[str, object] | None = None, name: str = "lookup", entry_key: str = "table"
    ) -> None:
        self._table = {str(key): value for key, value in (table or {}).items()}
        self._entry_key = entry_key
        self.tool = Tool(
            name,
            "Returns the value that is stored under a key.",
            {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        )

    def call(self, arguments: dict[str, object], task: Task) -> str:
        """The value as text, or a sentence that says there is no such key."""
        table = task.entry.get(self._entry_key, self._table)
        key = str(arguments["key"])
        if not isinstance(table, Mapping) or key not in table:
            return f"there is no key {key!r}"
        return str(table[key])
