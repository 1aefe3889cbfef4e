"""A few word problems in GSM8K's form, which ship with the package: enough to try a recipe without a download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any


def word_problems() -> Iterator[dict[str, Any]]:
    """{"question", "answer"}: the answer ends in "#### " and a number. For PythonRecords."""
    text = files("headrace.actors.tasks").joinpath("word_problems.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines():
        yield json.loads(line)
