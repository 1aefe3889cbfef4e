"""One evaluation as a table: a row for all prompts and for each task class, a figure ± its standard error in each
column. Pure; for the terminal, the page and eval.json's reader alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALL = "all"


def evaluation_rows(entry: Mapping[str, Any]) -> list[list[str]]:
    """The head, then the rows. Columns that no row has a value for are left out."""
    named = {"reward": "reward", "greedy": "greedy"}
    ks = sorted(int(name.removeprefix("pass_at_")) for name in entry if name.removeprefix("pass_at_").isdecimal())
    named |= {f"pass_at_{k}": f"pass@{k}" for k in ks}
    shown = {name: label for name, label in named.items() if name in entry}
    parts = {ALL: entry, **entry.get("classes", {})}
    head = ["", "prompts", *shown.values()]
    return [head, *([name, *_cells(values, list(shown))] for name, values in parts.items())]


def _cells(values: Mapping[str, Any], shown: list[str]) -> list[str]:
    return [f"{values.get('prompts', 0):.0f}", *(_cell(values, name) for name in shown)]


def _cell(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "–"
    return f"{values[name]:.3f} ± {values.get(f'{name}_stderr', 0.0):.3f}"


def format_rows(rows: list[list[str]], indent: str = "") -> list[str]:
    """Lines with the columns under each other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    first, *others = widths
    padded = [[row[0].ljust(first), *map(str.rjust, row[1:], others)] for row in rows]
    return [(indent + "  ".join(cells)).rstrip() for cells in padded]
