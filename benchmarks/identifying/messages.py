"""What the learner asks the reader."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.transport import message


@message("identifying.who_serves")
@dataclass(frozen=True, slots=True)
class WhoServes:
    """learner → reader (ask → Serves): which version makes a token now?"""


@message("identifying.serves")
@dataclass(frozen=True, slots=True)
class Serves:
    """`version` of a request made for this question alone; `token_is_right`: whether its token says so too."""

    version: int
    token_is_right: bool


@message("identifying.read")
@dataclass(frozen=True, slots=True)
class WhatWasRead:
    """learner → reader (ask → Readings): stop, and say what was found."""


@message("identifying.readings")
@dataclass(frozen=True, slots=True)
class Readings:
    """tokens: checked; wrong: that are not their version's; completions: of which so many hold tokens of two versions
    or more (mixed); lost: requests that died with a generator. problems: the first few, in words. versions: those that
    tokens claimed."""

    tokens: int
    wrong: int
    completions: int
    mixed: int
    lost: int
    problems: tuple[str, ...]
    versions: tuple[int, ...]
