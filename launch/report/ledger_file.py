"""Reads ledger.sqlite, the dispatcher's journal, of a run that ended, was killed, or goes on. Never changes it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_COLUMNS = ("session_id", "state", "reason", "step", "lag", "token_lags", "reward", "tokens")


def read_ledger(path: Path) -> tuple[list[dict[str, Any]], int]:
    """A dict for each session that was ever issued, and how many the dispatcher says it issued. Raises ValueError where
    the file cannot be read."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(f"select {', '.join(_COLUMNS)} from sessions").fetchall()
            issued = database.execute("select value from facts where name = 'issued'").fetchone()
    except sqlite3.Error as error:
        raise ValueError(f"{error}") from error
    return [_session(row) for row in rows], 0 if issued is None else int(issued[0])


def _session(row: tuple[Any, ...]) -> dict[str, Any]:
    session = dict(zip(_COLUMNS, row, strict=True))
    if isinstance(session["token_lags"], str):
        session["token_lags"] = json.loads(session["token_lags"])
    return session
