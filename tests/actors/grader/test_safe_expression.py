"""Arithmetic that a policy wrote."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.grader import safe_expression
from headrace.actors.grader.safe_expression import NotAllowed


@pytest.mark.parametrize(
    ("numbers", "target", "answer", "solved"),
    [
        ([1, 81, 1, 1], 81, "81*1", False),
        ([1, 81, 1, 1], 81, "81*1*1*1", True),
        ([7, 2], 3, "7/2", False),
        ([7, 2], 5, "7 - 2", True),
        ([3, 3, 8, 8], 24, "8/(3-8/3)", True),
        ([1, 2], 3, "1+2+0", False),
    ],
)
def test_countdown_is_exact(numbers: list[int], target: int, answer: str, solved: bool) -> None:
    """cases A32: open-thought/reasoning-gym#478: numbers as a multiset, values as fractions."""
    assert safe_expression.solves_with_all(answer, numbers=numbers, target=target) is solved


@pytest.mark.parametrize(
    "text",
    ["x", "(1).real", "2**3", "9**9**9**9", "abs(1)", "__import__('os').system('true')", "1 if 1 else 2", "[1]", "1;2",
     "lambda: 1", "1.5", "True", "'1'", "1//2", "5%2", "1/0", "", "1" * 40,
     "(" * 300 + "1" + ")" * 300, "-" * 900 + "1"],
)  # fmt: skip
def test_everything_but_arithmetic_is_refused_without_evaluation(text: str) -> None:
    """cases A32: names, attribute access, towers of powers and calls."""
    began_s = time.perf_counter()
    with pytest.raises(NotAllowed):
        safe_expression.value_and_numbers(text)
    assert time.perf_counter() - began_s < 0.2


@given(st.recursive(st.integers(0, 99).map(str), lambda part: st.tuples(part, st.sampled_from("+-*"), part).map(
    lambda p: f"({p[0]}{p[1]}{p[2]})"), max_leaves=8))  # fmt: skip
def test_value_is_that_of_python(text: str) -> None:
    value, numbers = safe_expression.value_and_numbers(text)
    assert value == Fraction(eval(text))
    assert len(numbers) == text.count("(") + 1


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("x**2/2 + C", True), ("2*x**(3/2)/3 + sin(x)*exp(2*x)", True), ("exp(x)**2 - x**0.5", True),
        ("x**x", True), ("x**9**9", False), ("x**1000", False), ("y", False), ("x.subs", False), ("open(x)", False),
        ("sin(x, x)", False), ("sin", False), ("x[0]", False),
    ],
)  # fmt: skip
def test_formulas(text: str, allowed: bool) -> None:
    if allowed:
        safe_expression.check_formula(text, names={"x", "C"}, functions={"sin", "exp"})
    else:
        with pytest.raises(NotAllowed):
            safe_expression.check_formula(text, names={"x", "C"}, functions={"sin", "exp"})
