"""One rule for every number of a configuration, wherever it stands: it is finite, and fits 64 bits. Pure.

YAML and the command line take `nan`, `inf` and integers of any length. A comparison with nan is false, so that
constructors which refuse bad values let it pass, and it does its harm much later. What has no limit says so with null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from headrace.launch.problems import Problem, shorten

LARGEST = 2**63 - 1


def check_numbers(config: Mapping[str, object]) -> list[Problem]:
    return [problem for key, value in leaves(config) if (problem := _problem(key, value)) is not None]


def leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no container, with its dotted key."""
    if isinstance(value, Mapping):
        items: Iterator[tuple[object, object]] = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    else:
        yield key, value
        return
    for name, item in items:
        yield from leaves(item, f"{key}.{name}" if key else str(name))


def _problem(key: str, value: object) -> Problem | None:
    if isinstance(value, float) and not math.isfinite(value):
        return Problem(key, str(value), "a finite number", "give it one; where null is allowed, null means no limit")
    if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        return Problem(key, shorten(value), "an integer of 64 bits", "give it a smaller one")
    return None
