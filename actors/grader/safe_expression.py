"""Arithmetic that a policy wrote, judged without running it: a whitelist over the syntax tree, exact fractions, bounded
sizes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence
from fractions import Fraction

MAX_EXPRESSION_CHARACTERS = 1000
_MAX_EXPONENT = 64
_MAX_DIGITS = 30
_MAX_DEPTH = 60


class NotAllowed(ValueError):
    """The text is no arithmetic of the allowed kind; says which part."""


def parse_expression(text: str) -> ast.expr:
    """The syntax tree of one expression. Raises NotAllowed."""
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        raise NotAllowed(f"an expression may have {MAX_EXPRESSION_CHARACTERS} characters, got {len(text)}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAllowed(f"no expression: {error}") from None


def value_and_numbers(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of an expression of integers, + - * / and brackets, and the integers in it. Raises NotAllowed."""
    numbers: list[int] = []
    return _value(parse_expression(text), numbers, 0), numbers


def _value(node: ast.expr, numbers: list[int], depth: int) -> Fraction:
    if depth > _MAX_DEPTH:
        raise NotAllowed(f"brackets may nest {_MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            _check_size(number)
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, numbers, depth + 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=operator, right=right):
            return _combine(operator, _value(left, numbers, depth + 1), _value(right, numbers, depth + 1))
    raise NotAllowed(f"{type(node).__name__} is not allowed; integers, + - * / and brackets are")


def _combine(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            if right == 0:
                raise NotAllowed("division by zero")
            return left / right
    raise NotAllowed(f"the operator {type(operator).__name__} is not allowed; + - * / are")


def solves_with_all(text: str, *, numbers: Sequence[int], target: int) -> bool:
    """Whether the expression has exactly `target` as its value and uses each of `numbers` as often as it occurs. Raises
    NotAllowed."""
    value, used = value_and_numbers(text)
    return value == target and Counter(used) == Counter(numbers)


def check_formula(text: str, *, names: Collection[str], functions: Collection[str]) -> None:
    """Raise NotAllowed unless `text` is a formula of numbers, `names`, calls of `functions`, + - * / and powers of
    bounded size."""
    _check_node(parse_expression(text), frozenset(names), frozenset(functions), 0)


def _check_node(node: ast.expr, names: frozenset[str], functions: frozenset[str], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise NotAllowed(f"brackets may nest {_MAX_DEPTH} deep")
    match node:
        case ast.Constant(value=int(number) | float(number)) if type(number) in (int, float):
            _check_size(number)
        case ast.Name(id=name) if name in names:
            return
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            _check_node(operand, names, functions, depth + 1)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            _check_node(left, names, functions, depth + 1)
            _check_exponent(right, names, functions, depth + 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            _check_node(left, names, functions, depth + 1)
            _check_node(right, names, functions, depth + 1)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in functions:
            _check_node(argument, names, functions, depth + 1)
        case _:
            raise NotAllowed(f"{type(node).__name__} is not allowed in a formula")


def _check_exponent(node: ast.expr, names: frozenset[str], functions: frozenset[str], depth: int) -> None:
    """An exponent is a small number, or a formula that holds a name and no power of its own."""
    if any(isinstance(part, ast.Pow) for part in ast.walk(node)):
        raise NotAllowed("a power in an exponent is not allowed")
    _check_node(node, names, functions, depth)
    if any(isinstance(part, ast.Name) for part in ast.walk(node)):
        return
    size = (
        abs(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
        else abs(_value(node, [], 0))
    )
    if size > _MAX_EXPONENT:
        raise NotAllowed(f"an exponent may be at most {_MAX_EXPONENT}")


def _check_size(number: int | float) -> None:
    if isinstance(number, int) and number.bit_length() > 4 * _MAX_DIGITS:
        raise NotAllowed(f"a number may have {_MAX_DIGITS} digits")
    if number != number or number in (float("inf"), float("-inf")):
        raise NotAllowed("a number must be finite")
