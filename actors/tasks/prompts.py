"""How a generated problem is worded for the policy. A plug-in: any object with `messages`, `answer` and `describe`.

LibraryPrompt          the library's own question, with a system prompt or an instruction if asked
CompactNumberSorting   "^77,13,32=" for tiny models made from scratch (number_sorting.py)
"""

from __future__ import annotations

from typing import Any, Protocol

from headrace.actors.session import ChatMessage


class PromptFormat(Protocol):
    def messages(self, item: dict[str, Any]) -> tuple[ChatMessage, ...]:
        """The prompt of one generated problem (keys question, answer, metadata)."""

    def answer(self, item: dict[str, Any]) -> str | None:
        """The expected answer in this format; None where any of many answers may be right."""

    def describe(self) -> str:
        """Everything that determines the wording, for fingerprints."""


class LibraryPrompt:
    """system: a system message ("" for none). instruction: added to the question after an empty line."""

    def __init__(self, *, system: str = "", instruction: str = "") -> None:
        self.system = system
        self.instruction = instruction

    def messages(self, item: dict[str, Any]) -> tuple[ChatMessage, ...]:
        question = str(item["question"]).strip()
        if self.instruction:
            question = f"{question}\n\n{self.instruction}"
        system = (ChatMessage("system", self.system),) if self.system else ()
        return (*system, ChatMessage("user", question))

    def answer(self, item: dict[str, Any]) -> str | None:
        return None if item["answer"] is None else str(item["answer"])

    def describe(self) -> str:
        return f"library/{self.system!r}/{self.instruction!r}"
