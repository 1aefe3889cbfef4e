"""What of a child's log is for the console: what Headrace and the user's own classes say, without its second clock and
module, and whatever may be an error. What libraries say on every healthy run stays in the log file. Called by
supervisor.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

OURS = frozenset(("headrace",))
_CHATTER = re.compile(
    r"""
    \s*$
    | \d\d:\d\d:\d\d\ [DIW]\                                # another library's logger, below ERROR
    | \(\S+(\ pid=\d+)?\)\ (DEBUG|INFO|WARNING)\            # vLLM's processes
    | (DEBUG|INFO|WARNING)\ \d\d-\d\d\ \d\d:\d\d            # vLLM before it has names for them
    | \[W\d+\ .*\bWarning:                                  # torch's C++ side
    | .*\d%(\||\ Completed)                                 # progress bars
    | Triton\ is\ installed,\ but                           # vLLM on a CPU, once a process
    """,
    re.VERBOSE,
)
_PYTHON_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")


class ForConsole:
    """`emit` gets (process, text) of what is worth a person's look. `packages`: whose loggers speak to that person."""

    def __init__(self, emit: Callable[[str, str], None], packages: Collection[str] = OURS) -> None:
        self._emit = emit
        names = "|".join(map(re.escape, sorted(packages)))
        self._ours = re.compile(rf"\d\d:\d\d:\d\d (?P<level>[DIWEC]) (?:{names})(?:\.\S*)?: (?P<text>.*)")
        self._after_warning = False

    def __call__(self, process: str, line: str) -> None:
        quoted_code = self._after_warning and line.startswith("  ")
        self._after_warning = _PYTHON_WARNING.match(line) is not None
        if quoted_code or self._after_warning:
            return
        if ours := self._ours.fullmatch(line):
            level, text = ours["level"], ours["text"]
            self._emit(process, text if level == "I" else f"{level} {text}")
        elif not _CHATTER.match(line):
            self._emit(process, line)


def packages_of(config: Mapping[str, Any]) -> frozenset[str]:
    """Headrace, and the top-level package of every class that the configuration names."""
    return OURS | {target.partition(".")[0] for target in _targets(config)}


def _targets(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str):
            yield target
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)
