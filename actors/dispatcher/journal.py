"""ledger.jsonl: one line for each training session that ended, in the order in which they ended. Appends only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

from headrace.actors.dispatcher.ledger import SessionRecord


def ledger_line(record: SessionRecord) -> dict[str, object]:
    """`versions`: [oldest, newest] of its trained tokens; `token_lags`: lag → trained tokens, by the learner's step
    when it was trained; `tokens`: sampled tokens. A key whose value is unknown is null."""
    known = record.version_tokens
    return {
        "session_id": record.spec.session_id,
        "group_id": record.spec.group_id,
        "task_id": record.spec.task.task_id,
        "state": str(record.state),
        "reason": None if record.reason is None else str(record.reason),
        "attempt": record.spec.attempt,
        "step": record.step,
        "lag": record.lag,
        "token_lags": record.token_lags,
        "reward": record.reward,
        "versions": [record.oldest_version, record.newest_version] if known else None,
        "tokens": record.num_tokens if record.graded else None,
    }


class LedgerJournal:
    """Lines are buffered; `flush` hands them to the operating system (the actor does so every few seconds and at the
    end)."""

    def __init__(self, path: str | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open for the actor's life)

    def write(self, record: SessionRecord) -> None:
        if self._file is not None:
            self._file.write(
                json.dumps(ledger_line(record), separators=(",", ":"), allow_nan=False, default=str) + "\n"
            )

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
