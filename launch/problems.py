"""What is wrong with a configuration: problems that name the key, what was given, what is allowed, and the fix.

Checks return lists of these and never raise on the first one, so that a user sees all of them at once. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`key` is the dotted path in the configuration ("learner.lr"); `fix` says what to do about it."""

    key: str
    given: str
    allowed: str
    fix: str

    def __str__(self) -> str:
        return f"{self.key}: got {self.given}; allowed: {self.allowed}; {self.fix}"

    def to_json(self) -> dict[str, str]:
        return asdict(self)


class ConfigError(Exception):
    """A configuration that cannot work. Raised before any actor process starts; `problems` is never empty."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"the configuration cannot work ({count}), nothing was started:{lines}")


def did_you_mean(given: str, known: Iterable[str], otherwise: str) -> str:
    """The fix for a name that does not exist: the closest one that does, or `otherwise`."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else otherwise


def listing(names: Iterable[str], at_most: int = 20) -> str:
    """Names for the `allowed` part of a problem, cut where there are very many."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:at_most])
    return (shown + f", … ({len(ordered)} in all)") if len(ordered) > at_most else (shown or "nothing")


def shorten(value: object, at_most: int = 80) -> str:
    """`repr` of a value for the `given` part of a problem."""
    text = repr(value)
    return text if len(text) <= at_most else text[: at_most - 1] + "…"
