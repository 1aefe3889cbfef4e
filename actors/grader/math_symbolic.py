r"""Symbolic equality of two mathematical answers by math-verify, with the guards that it lacks. Runs only in a killable
process.

Both sides are boxed alike before parsing, so that neither is searched for numbers; only what parses to a symbolic
object is compared (its text fallback keeps a prefix and calls different answers equal); an equality of values is
checked again with many digits (math_precision.py). The order is (gold, answer): an interval answers an inequality, not
the reverse.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from headrace.actors.grader.math_precision import agree

_SPELLINGS = ((r"\\(?:mathrm|text|rm)\s*\{\s*e\s*\}", "e"), (r"\\(?:mathrm|text|rm)\s*\{\s*i\s*\}", "i"))
_NO_VALUE = re.compile(r"\\(?:[lcd]?dots|forall|exists|text)\b|…|\.\.\.")


def load() -> None:
    """Import the engine and run it once, so that forked children start warm. Its log warns about a missing alarm; ours
    is the process."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    equal_symbolically(r"x^2+\frac{1}{2}", r"\frac{1}{2}+x\cdot x")


def parses(text: str) -> bool:
    """Whether the engine reads `text` as a mathematical object."""
    return bool(_parse(text))


def equal_symbolically(gold: str, answer: str) -> bool:
    """Whether `answer` is `gold`. May hang or eat memory on hostile text: call it where it can be killed."""
    if _NO_VALUE.search(gold) or _NO_VALUE.search(answer):
        return False  # patterns and quantified statements have no value to compare; equal text was decided before
    from math_verify import verify

    golds, answers = _parse(gold), _parse(answer)
    return any(verify(g, a, timeout_seconds=None) and agree(g, a) for g in golds[:1] for a in answers[:1])


def _parse(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, MatrixBase

    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    parsed = parse(
        r"\boxed{" + text + "}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        parsing_timeout=None,
    )
    return [item for item in parsed if isinstance(item, (Basic, MatrixBase))]
