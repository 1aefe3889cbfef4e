"""The answer in a completion."""

from __future__ import annotations

import pytest

from headrace.actors.grader import extraction


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{5}. That is wrong; the answer is \boxed{7}.", "7"),
        (r"\fbox{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{42", None),
        (r"\boxed{1} and then \boxed{2", None),
        (r"\boxed{\text{a \} b}}", r"\text{a \} b}"),
        (r"\boxed {3}", "3"),
        ("no box", None),
    ],
)
def test_last_boxed(text: str, answer: str | None) -> None:
    """cases A2, A4: the last box by a brace counter, both box commands, nothing for an unclosed one."""
    assert extraction.last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "opened", "visible"),
    [
        (r"<think>maybe \boxed{42}", False, None),
        (r"<think>\boxed{7}</think> \boxed{42}", False, r" \boxed{42}"),
        (r"still thinking \boxed{42}", True, None),
        ("reasoning</think>answer", True, "answer"),
        ("<think>a</think>b<think>c", False, None),
        ("plain", False, "plain"),
    ],
)
def test_strip_reasoning(text: str, opened: bool, visible: str | None) -> None:
    """cases A7, A8: unfinished reasoning has no answer; the prompt may hold the opening tag."""
    assert extraction.strip_reasoning(text, opened_by_prompt=opened) == visible


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42.", "42"),
        ("so we get\n#### -1,234.5\n", "-1,234.5"),
        ("= 122 + 294 + 489 = 905 ... the number is **73**. Final Answer: **73**", "73"),
        ("**Final Answer:** $x+1$", "x+1"),
        ("we try 41, then 42", "42"),
        ("**Final Answer** 7 apples", "7 apples"),
        ("**Final Answer**\n\n$x+1$\n", "x+1"),
        (r"The answer is 5, so \boxed{6}", "6"),
        ("nothing here", None),
    ],
)
def test_flexible_rule(text: str, answer: str | None) -> None:
    """cases A19, A29, A31."""
    assert extraction.extract_answer(text, "flexible") == answer
    assert extraction.extract_answer(text, "strict") == ("6" if "boxed" in text else None)


def test_text_after_the_end_of_the_turn_is_not_graded() -> None:
    """cases A10: what follows the first end marker does not count."""
    assert extraction.cut_at_end_of_text("5<eos>6<eos>7<end>", ("<end>", "<eos>")) == "5"
    assert extraction.cut_at_end_of_text("5", ("<eos>",)) == "5"


def test_unknown_rule_names_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"strict, flexible.*'lenient'"):
        extraction.check_rule("lenient")
