r"""Multiple choice: the last explicit choice of a letter, boxed or stated. A letter inside a formula is no choice."""

from __future__ import annotations

import re

from headrace.actors.grader.extraction import brace_pairs, opens_reasoning, strip_reasoning
from headrace.actors.grader.grading import Grade, Isolation, answer_text, unscorable_grade
from headrace.actors.session import Task, Trajectory

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_GAP = r"[\s*_]{0,8}"
_STATED = re.compile(rf"\b(?:answer|choice|option)\b{_GAP}(?:is|:|=)?{_GAP}:?{_GAP}([^\n]+)", re.I)
_MAX_CHOICE_CHARACTERS = 300
"""of a statement or box are looked at"""

_WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


def chosen_letter(text: str, letters: str) -> str | None:
    r"""The letter that stands as a choice at the start of `text`: "E", "(E)", "E: an option", "E. an option",
    \text{(E)}."""
    plain = _WRAPPER.sub(r"\1", text[:_MAX_CHOICE_CHARACTERS]).strip().strip("$").strip().lstrip("*_").strip()
    match = re.match(rf"\(?([{re.escape(letters)}])\)?(?=$|[\s*_$]*$|\s*[:.)\]*,;]|\s+-)", plain)
    return match[1] if match else None


def extract_choice(text: str, letters: str) -> str | None:
    """The last choice in `text`, by position; None where there is none."""
    candidates: list[tuple[int, str]] = []
    pairs = brace_pairs(text)
    for opener in _BOX.finditer(text):
        end = pairs.get(opener.end())
        letter = None if end is None else chosen_letter(text[opener.end() : end], letters)
        if letter:
            candidates.append((opener.start(), letter))
    for statement in _STATED.finditer(text):
        letter = chosen_letter(statement[1], letters)
        if letter:
            candidates.append((statement.start(), letter))
    return max(candidates)[1] if candidates else None


class MultipleChoiceGrading:
    """1.0 for the gold letter (`task.answer`), 0.0 for another or none, None where the gold is no letter of
    `letters`."""

    isolation: Isolation = "inline"

    def __init__(self, *, letters: str = "ABCDEFGHIJ", prompt_tail: str = "") -> None:
        if not letters.isalpha() or len(set(letters)) != len(letters):
            raise ValueError(f"letters must be distinct letters such as 'ABCD', got {letters!r}")
        self.letters = letters
        self.prompt_tail = prompt_tail

    def unscorable(self, task: Task) -> str | None:
        return self._no_letter(task) if chosen_letter(task.answer or "", self.letters) is None else None

    def grade(self, trajectory: Trajectory) -> Grade:
        gold = chosen_letter(trajectory.spec.task.answer or "", self.letters)
        if gold is None:
            return unscorable_grade(self._no_letter(trajectory.spec.task))
        visible = strip_reasoning(answer_text(trajectory), opened_by_prompt=opens_reasoning(self.prompt_tail))
        choice = None if visible is None else extract_choice(visible, self.letters)
        reward = 1.0 if choice == gold else 0.0
        return Grade(reward, {"correct": reward}, {"answer": choice or ""})

    def _no_letter(self, task: Task) -> str:
        return f"gold {task.answer!r} is no letter of {self.letters}"
