"""Rewards the shape of a completion: sections in tags, in order, each closed. Says nothing about what they hold."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.actors.grader.grading import Grade, Isolation, answer_text
from headrace.actors.session import Trajectory


def has_format(
    completion: str, *, sections: Sequence[str], prompt_tail: str = "", text_may_follow: bool = True
) -> bool:
    """Whether `<a>…</a><b>…</b>` stand in order with only white space between, from the start on, each tag once.

    prompt_tail: the end of the rendered prompt: an opening tag that stands there counts as the completion's own.
    text_may_follow: whether text may follow the last section; white space always may (a natural stop has no final
    newline).
    """
    opened = f"<{sections[0]}>"
    text = opened + completion if prompt_tail.rstrip().endswith(opened) else completion
    rest = text.lstrip()
    for section in sections:
        opener, closer = f"<{section}>", f"</{section}>"
        if not rest.startswith(opener) or text.count(opener) != 1 or text.count(closer) != 1 or closer not in rest:
            return False
        rest = rest[rest.index(closer) + len(closer) :].lstrip()
    return text_may_follow or not rest


class FormatGrading:
    """1.0 where the last assistant message has the format, else 0.0. See `has_format`."""

    isolation: Isolation = "inline"

    def __init__(
        self,
        *,
        sections: tuple[str, ...] | list[str] = ("think",),
        prompt_tail: str = "",
        text_may_follow: bool = True,
    ) -> None:
        if not sections:
            raise ValueError("sections must name at least one tag, such as ['think']")
        self.sections = tuple(sections)
        self.prompt_tail = prompt_tail
        self.text_may_follow = text_may_follow

    def grade(self, trajectory: Trajectory) -> Grade:
        shaped = has_format(
            answer_text(trajectory),
            sections=self.sections,
            prompt_tail=self.prompt_tail,
            text_may_follow=self.text_may_follow,
        )
        reward = 1.0 if shaped else 0.0
        return Grade(reward, {"format": reward})
