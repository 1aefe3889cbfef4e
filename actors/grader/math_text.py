r"""Cheap comparison of two mathematical answers as text: exact, bounded, no symbolic engine. Decides most sessions.

The written policy (also in docs/graders.md):
- whitespace, \left \right, \displaystyle, $…$, \text{…} wrappers, \dfrac, thousands separators and one final full stop
  do not matter
- units after a number are dropped: `12\text{ ft}` = `12 \mathrm{cm}` = `12`; so is a leading currency sign and a degree
  sign
- a percent sign is dropped: `50\%` = `50%` = `50`, and `50\%` != `0.5`
- numbers are compared exactly, as fractions: `0.5` = `1/2`, `33.3` != `100/3`
- one exception: a decimal of at least six significant digits stands for a fraction with no finite decimal if it is that
  fraction
  rounded or cut at its last digit: `0.0833333333333333` = `\frac{1}{12}`; an integer or a finite decimal is never
  rounded
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_ANSWER_CHARACTERS = 1000
"""longer answers are wrong, unseen by the symbolic engine"""

MIN_ROUNDED_DIGITS = 6
_MAX_NUMBER_CHARACTERS = 200

_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname|mbox|emph)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:[,;:! ]|quad|qquad|displaystyle|left(?![a-z])|right(?![a-z]))|~")
_UNIT = re.compile(
    r"(?<=[\d}])\s*\\(?:text|mathrm|mbox|operatorname)\s*\{\s*[a-zA-Z][a-zA-Z\s./]*(?:\^\{?-?\d\}?)?\s*\}(?:\^\{?-?\d\}?)?\s*$"
)
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°")
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")
_DECIMAL = re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)$")
_RATIO = re.compile(r"^([-+]?\d+)/(\d+)$")
_FRACTION = re.compile(r"^([-+]?)\\frac\{([-+]?\d+)\}\{([-+]?\d+)\}$")
_SHORT_FRACTION = re.compile(r"^([-+]?)\\frac(\d)(\d)$")


def is_balanced(text: str) -> bool:
    """Whether curly braces close. A gold answer that fails this is unscorable."""
    depth = 0
    for token in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


def normalise(answer: str) -> str:
    """One spelling of an answer for comparison as text. Never evaluates anything."""
    text = answer.strip()
    if len(text) >= 2 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip()
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = _DEGREE.sub("", text)
    text = _UNIT.sub("", text)
    for _ in range(3):
        text = _WRAPPER.sub(r"\1", text)
    text = _SPACING.sub("", text).replace("{,}", ",").replace("−", "-").replace("**", "")
    text = re.sub(r"^([-+]?)\\?\$", r"\1", text.strip())
    text = re.sub(r"(?<=[\d}.])\s*\\?%$", "", text.strip())
    if text.endswith(".") and not text.endswith("..") and not re.fullmatch(r"\d+\.", text[-2:]):
        text = text[:-1]
    text = re.sub(r"\s+", "", text)
    return text.replace(",", "") if _THOUSANDS.match(text) else text


def exact_number(text: str) -> Fraction | None:
    """The exact value of a normalised integer, decimal or fraction of integers; None for anything else."""
    if len(text) > _MAX_NUMBER_CHARACTERS:
        return None
    if _DECIMAL.match(text):
        return Fraction(text.rstrip(".") if text.endswith(".") else text)
    ratio = _RATIO.match(text)
    if ratio:
        return Fraction(int(ratio[1]), int(ratio[2])) if int(ratio[2]) else None
    fraction = _FRACTION.match(text) or _SHORT_FRACTION.match(text)
    if fraction and int(fraction[3]):
        value = Fraction(int(fraction[2]), int(fraction[3]))
        return -value if fraction[1] == "-" else value
    return None


def has_finite_decimal(value: Fraction) -> bool:
    """Whether `value` can be written with finitely many decimals."""
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def significant_digits(decimal: str) -> int:
    return len(re.sub(r"[^\d]", "", decimal).lstrip("0"))


def _is_rounding_of(decimal: str, value: Fraction) -> bool:
    """Whether `decimal` is `value` rounded or cut at the decimal's last digit, with enough digits to mean it."""
    if "." not in decimal or significant_digits(decimal) < MIN_ROUNDED_DIGITS or has_finite_decimal(value):
        return False
    unit = Fraction(1, 10 ** len(decimal.split(".")[1]))
    return abs(Fraction(decimal) - value) < unit


def compare_numbers(gold: str, answer: str) -> bool | None:
    """Whether two normalised numbers are equal under the policy; None where either is no plain number."""
    gold_value, answer_value = exact_number(gold), exact_number(answer)
    if gold_value is None or answer_value is None:
        return None
    if gold_value == answer_value:
        return True
    if _DECIMAL.match(answer):
        return _is_rounding_of(answer, gold_value)
    return _DECIMAL.match(gold) is not None and _is_rounding_of(gold, answer_value)


def split_top_level(text: str) -> list[str]:
    """The parts of `text` between commas outside every bracket."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def compare_tuples(gold: str, answer: str) -> bool | None:
    """Whether two normalised tuples or intervals of plain numbers are equal, brackets included; None where
    undecided."""
    if len(gold) < 2 or len(answer) < 2 or gold[0] not in "([" or answer[0] not in "([":
        return None
    if gold[-1] not in ")]" or answer[-1] not in ")]":
        return None
    gold_parts, answer_parts = split_top_level(gold[1:-1]), split_top_level(answer[1:-1])
    if len(gold_parts) < 2 or len(answer_parts) < 2:
        return None
    verdicts = [compare_numbers(g, a) for g, a in zip(gold_parts, answer_parts, strict=False)]
    if None in verdicts:
        return None
    same_brackets = gold[0] == answer[0] and gold[-1] == answer[-1]
    return same_brackets and len(gold_parts) == len(answer_parts) and all(verdicts)


def compare_cheaply(gold: str, answer: str) -> bool | None:
    """True or False where text, numbers or tuples of numbers decide; None where a symbolic comparison is needed."""
    gold_text, answer_text = normalise(gold), normalise(answer)
    if not answer_text:
        return False
    if gold_text == answer_text:
        return True
    for compare in (compare_numbers, compare_tuples):
        verdict = compare(gold_text, answer_text)
        if verdict is not None:
            return verdict
    return None
