"""The compact text of reasoning-gym's number_sorting, for tiny models with a character vocabulary.

    ^77,13,32=[13,32,77]      ascending
    v77,13,32=[77,32,13]      descending

The library's own scorer accepts the compact answer: it is a JSON list of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from headrace.actors.session import ChatMessage

Direction = Literal["ascending", "descending"]

DATASET = "number_sorting"
MARKS: dict[str, str] = {"ascending": "^", "descending": "v"}
CHARACTERS = "0123456789.,-^v=[]"
"""every character that prompts and answers can hold"""


def compact_number(text: str) -> str:
    """A number as the library writes it, without a decimal part of zero: "14.0" → "14", "-0.0" → "0"."""
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def compact_prompt(numbers: Sequence[str], direction: str) -> str:
    return f"{MARKS[direction]}{','.join(numbers)}="


def compact_answer(numbers: Sequence[str]) -> str:
    return f"[{','.join(numbers)}]"


def compact_problem(item: dict[str, Any]) -> tuple[list[str], Direction, list[str]]:
    """(numbers as given, direction, numbers sorted) of one generated item. Raises ValueError for another dataset's."""
    metadata = item["metadata"]
    if metadata.get("source_dataset") != DATASET:
        raise ValueError(
            f"the compact format is for the dataset {DATASET!r}, got {metadata.get('source_dataset')!r}; "
            "use headrace.actors.tasks.prompts.LibraryPrompt for others"
        )
    numbers = [compact_number(text) for text in metadata["original_numbers"]]
    direction: Direction = "ascending" if metadata["direction"] == "ascending" else "descending"
    return numbers, direction, sorted(numbers, key=float, reverse=direction == "descending")


class CompactNumberSorting:
    """A prompt format (prompts.py)."""

    def messages(self, item: dict[str, Any]) -> tuple[ChatMessage, ...]:
        numbers, direction, _ = compact_problem(item)
        return (ChatMessage("user", compact_prompt(numbers, direction)),)

    def answer(self, item: dict[str, Any]) -> str | None:
        return compact_answer(compact_problem(item)[2])

    def describe(self) -> str:
        return "compact_number_sorting/1"
