"""A second look at an equality that a symbolic engine found: it must hold with many digits, relatively.

The engine compares values within an absolute tolerance, so all tiny values are equal to it. This only ever takes an
equality back; where it cannot evaluate (unknown functions, unequal shapes) the engine's verdict stands. Sympy objects
in, a bool out.
"""

from __future__ import annotations

from typing import Any

_DIGITS = 50
_EXACT_TOLERANCE = 1e-40
_DECIMAL_TOLERANCE = 1e-6
"""relative; where either side was written as a decimal"""

_POINTS = ((3, 7), (11, 5))
"""numerator and denominator of positive values for the free symbols; each symbol gets its own multiple"""


def agree(gold: Any, answer: Any) -> bool:
    """False where corresponding values differ by more than their own size allows."""
    from sympy import Expr, Interval, MatrixBase, Tuple
    from sympy.core.relational import Equality, Relational

    if isinstance(gold, Equality) != isinstance(answer, Equality):  # "x = 5" and "5"
        gold, answer = _right_side(gold), _right_side(answer)
    if isinstance(gold, Expr) and isinstance(answer, Expr):
        return all(_close(g, a) for g, a in _sampled(gold, answer))
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        return agree(gold.start, answer.start) and agree(gold.end, answer.end)
    if isinstance(gold, (MatrixBase, Tuple)) and isinstance(answer, (MatrixBase, Tuple)):
        return _all_agree(list(gold), list(answer))
    if any(_named(gold, name) and _named(answer, name) for name in ("FiniteSet", "And")):
        return len(gold.args) != len(answer.args) or _matched(gold.args, answer.args)
    if isinstance(gold, Relational) and isinstance(answer, Relational):
        return _proportional(gold.lhs - gold.rhs, answer.lhs - answer.rhs)
    return True


def _right_side(item: Any) -> Any:
    from sympy.core.relational import Equality

    return item.rhs if isinstance(item, Equality) else item


def _named(item: Any, name: str) -> bool:
    """Whether `item` is of a sympy class of that name or of the parser's own class of the same name."""
    return any(cls.__name__ == name for cls in type(item).__mro__)


def _all_agree(golds: list[Any], answers: list[Any]) -> bool:
    return len(golds) != len(answers) or all(agree(g, a) for g, a in zip(golds, answers, strict=True))


def _matched(golds: Any, answers: Any) -> bool:
    """Whether every gold element has an answer element that agrees with it."""
    return all(any(agree(g, a) for a in answers) for g in golds)


def _proportional(gold: Any, answer: Any) -> bool:
    """Whether two sides of "… = 0" have one ratio at every point."""
    samples = [(g.evalf(_DIGITS), a.evalf(_DIGITS)) for g, a in _sampled(gold, answer)]
    if len(samples) < 2 or any(not g.is_number or not a.is_number or g == 0 or a == 0 for g, a in samples):
        return True
    first, *others = [g / a for g, a in samples]
    return all(_within(first, ratio, _tolerance(gold, answer)) for ratio in others)


def _sampled(gold: Any, answer: Any) -> list[tuple[Any, Any]]:
    """Values of both at the same points; the pair itself where neither has a free symbol."""
    from sympy import Rational

    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if not symbols:
        return [(gold, answer)]
    points = [{s: Rational(n * (k + 1), d + k) for k, s in enumerate(symbols)} for n, d in _POINTS]
    return [(gold.subs(point), answer.subs(point)) for point in points]


def _close(gold: Any, answer: Any) -> bool:
    from sympy import nan, oo, zoo

    if gold == answer or gold.has(oo, -oo, zoo, nan) or answer.has(oo, -oo, zoo, nan):
        return True  # infinite bounds were compared by the engine
    gold_value, answer_value = gold.doit().evalf(_DIGITS), answer.doit().evalf(_DIGITS)
    if not gold_value.is_number or not answer_value.is_number:
        return True
    return _within(gold_value, answer_value, _tolerance(gold, answer))


def _tolerance(gold: Any, answer: Any) -> float:
    from sympy import Float

    return _DECIMAL_TOLERANCE if gold.has(Float) or answer.has(Float) else _EXACT_TOLERANCE


def _within(first: Any, second: Any, tolerance: float) -> bool:
    return bool(abs(first - second) <= tolerance * max(abs(first), abs(second)))
