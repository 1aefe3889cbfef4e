"""Finds the answer in a completion: the text after the reasoning, the last box, the last stated answer. Pure text, no
mathematics.

Two rules, chosen in the config and so written in the resolved one:
    strict    only the content of the last box counts
    flexible  the last box; without any box what follows '####', then a stated final answer, then the last number
An answer that the policy retracted never counts: always the last candidate of a kind, found by one backward scan.
"""

from __future__ import annotations

import re
from typing import Literal, cast, get_args

ExtractionRule = Literal["strict", "flexible"]

_BOX_OPENER = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.S)
_HASHES = re.compile(r"####[ \t]*([^\n]+)")
_GAP = r"[ \t]{0,8}(?:\*\*)?[ \t]{0,8}"
"""bounded, since a pattern that may split a long gap in two takes quadratic time"""

_STATED = re.compile(rf"\banswer(?:{_GAP}(?:is|:|=)|[ \t]{{0,8}}\*\*){_GAP}:?{_GAP}\n{{0,2}}([^\n]+)", re.I)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")


def check_rule(rule: str) -> ExtractionRule:
    """The rule, checked: raises ValueError naming what is allowed."""
    if rule in get_args(ExtractionRule):
        return cast(ExtractionRule, rule)
    raise ValueError(f"extraction must be one of {', '.join(get_args(ExtractionRule))}, got {rule!r}")


def opens_reasoning(prompt_tail: str, opener: str = "<think>") -> bool:
    """Whether the chat template's generation prompt already holds the opening tag, which is then not among the sampled
    tokens."""
    return prompt_tail.rstrip().endswith(opener)


def strip_reasoning(
    text: str, *, opened_by_prompt: bool = False, opener: str = "<think>", closer: str = "</think>"
) -> str | None:
    """What stands after the last closed reasoning block; None where reasoning was opened and never closed."""
    last_close = text.rfind(closer)
    if last_close < 0:
        return None if opened_by_prompt or opener in text else text
    answer = text[last_close + len(closer) :]
    return None if opener in answer else answer


def cut_at_end_of_text(text: str, markers: tuple[str, ...]) -> str:
    """`text` before its first end-of-turn marker: what was sampled after the end is never graded."""
    positions = [position for marker in markers if (position := text.find(marker)) >= 0]
    return text[: min(positions)] if positions else text


def brace_pairs(text: str) -> dict[int, int]:
    """For each group that is closed: where its content begins → the index of its closing brace. One pass."""
    pairs: dict[int, int] = {}
    open_groups: list[int] = []
    for token in _BRACE.finditer(text):
        if token[0] == "{":
            open_groups.append(token.end())
        elif token[0] == "}" and open_groups:
            pairs[open_groups.pop()] = token.start()
    return pairs


def last_boxed(text: str) -> str | None:
    r"""Content of the last \boxed{…} or \fbox{…}; None where there is none or the last one was never closed.
    A box inside a box counts as its content."""
    openers = list(_BOX_OPENER.finditer(text))
    if not openers:
        return None
    start = openers[-1].end()
    end = brace_pairs(text[start - 1 :]).get(1)
    return None if end is None else text[start : start - 1 + end].strip()


def has_box(text: str) -> bool:
    return _BOX_OPENER.search(text) is not None


def last_tagged(text: str, tag: str) -> str | None:
    """Content of the last <tag>…</tag>."""
    opener, closer = f"<{tag}>", f"</{tag}>"
    end = text.rfind(closer)
    start = text.rfind(opener, 0, end) if end >= 0 else -1
    return text[start + len(opener) : end].strip() if start >= 0 else None


def after_hashes(text: str) -> str | None:
    """What follows the last '####' (the convention of GSM8K)."""
    matches = _HASHES.findall(text)
    return matches[-1].strip() if matches else None


def stated_answer(text: str) -> str | None:
    """The last "final answer: X", "**Final Answer** X" or "the answer is X", without bold marks and the full stop."""
    matches = _STATED.findall(text)
    return _clean_statement(matches[-1]) if matches else None


def _clean_statement(statement: str) -> str:
    statement = statement.strip()
    bold = re.match(r"(.+?)\*\*", statement)
    if bold:
        statement = bold.group(1)
    statement = re.split(r"[.!?](?:\s|$)", statement.strip().strip("*").strip(), maxsplit=1)[0]
    return statement.strip().strip("$").strip()


def last_number(text: str) -> str | None:
    matches = _NUMBER.findall(text)
    return matches[-1] if matches else None


def extract_answer(text: str, rule: ExtractionRule) -> str | None:
    """The answer that `text` gives under `rule` (see the top of this file), or None. `text` has no reasoning any
    more."""
    if rule == "strict" or has_box(text):
        return last_boxed(text)
    for find in (after_hashes, stated_answer, last_number):
        answer = find(text)
        if answer:
            return answer
    return None
