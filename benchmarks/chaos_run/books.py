"""What a run has written of its sessions, in three places by three kinds of actors, and whether they agree.

    ledger.sqlite         the dispatcher's: how every session that it issued ended
    trained.jsonl         the learner's: which sessions went into which optimizer step
    trajectories/*.jsonl  the graders': every session that was graded

Reads the files by itself: no code of the runtime, whose errors it is to find, takes part.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHOWN = 5
"""ids that a problem names"""


@dataclass(frozen=True, slots=True)
class Session:
    """A row of the dispatcher's ledger."""

    state: str
    reason: str | None
    step: int | None
    group_id: str
    member: int
    attempt: int
    reward: float | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Graded:
    """A line of a grader's shard; `tokens`: those that were sampled and are trained on."""

    attempt: int
    reward: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Books:
    """`trained`: (optimizer step, its sessions) in the order of the file. `graded`: a session id's records, training
    only."""

    issued: int
    sessions: dict[str, Session]
    trained: list[tuple[int, tuple[str, ...]]]
    graded: dict[str, list[Graded]] = field(default_factory=dict)

    @property
    def trained_ids(self) -> list[str]:
        return [session_id for _, ids in self.trained for session_id in ids]

    def dropped(self) -> Counter[str]:
        return Counter(str(session.reason) for session in self.sessions.values() if session.state == "dropped")


def read_books(folder: Path) -> Books:
    """Of the run in `folder`, which has ended. Raises OSError, ValueError or sqlite3.Error where one is missing or
    damaged."""
    ledger = folder / "ledger.sqlite"
    columns = "session_id, state, reason, step, group_id, member, attempt, reward, tokens"
    with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute(f"select {columns} from sessions").fetchall()
        (issued,) = database.execute("select value from facts where name = 'issued'").fetchone()
    trained = [(int(line["step"]), tuple(line["session_ids"])) for line in _lines(folder / "trained.jsonl")]
    graded: dict[str, list[Graded]] = {}
    for shard in sorted((folder / "trajectories").glob("*.jsonl")):
        for line in _lines(shard):
            if line["purpose"] == "train":
                record = Graded(line["attempt"], line["reward"], sum(line["loss_mask"]))
                graded.setdefault(line["session_id"], []).append(record)
    return Books(int(issued), {row[0]: Session(*row[1:]) for row in rows}, trained, graded)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """A last line that its writer was killed in does not count."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def retrained(books: Books) -> int:
    """How often something was trained more than once: a session, or a task's session under another id."""
    ids = books.trained_ids
    places = {
        (session.group_id, session.member) if (session := books.sessions.get(session_id)) else (session_id, 0)
        for session_id in ids
    }
    return len(ids) - len(places)


def imbalances(books: Books, max_steps: int) -> list[str]:
    """What does not agree, in words; nothing where all does."""
    return [
        problem
        for problem in (
            _issued(books),
            _open(books),
            _reasons(books),
            _steps(books, max_steps),
            _learner_and_ledger(books),
            _without_trajectory(books),
        )
        if problem
    ]


def _issued(books: Books) -> str:
    rows = len(books.sessions)
    return "" if rows == books.issued else f"the dispatcher issued {books.issued} sessions and has {rows} in its ledger"


def _open(books: Books) -> str:
    states = Counter(session.state for session in books.sessions.values())
    still = {state: count for state, count in states.items() if state not in ("trained", "dropped")}
    return f"issued sessions that never ended: {still}" if still else ""


def _reasons(books: Books) -> str:
    odd = [name for name, session in books.sessions.items() if (session.state == "dropped") != bool(session.reason)]
    return _named("sessions are dropped without a reason, or have one and are not", odd)


def _steps(books: Books, max_steps: int) -> str:
    steps = [step for step, _ in books.trained]
    if steps == list(range(1, max_steps + 1)):
        return ""
    missing = sorted(set(range(1, max_steps + 1)) - set(steps))
    return f"the learner records {len(steps)} steps of {max_steps}, missing {missing[:SHOWN]}, last {steps[-1:]}"


def _learner_and_ledger(books: Books) -> str:
    recorded = {(session_id, step) for step, ids in books.trained for session_id in ids}
    booked = {(name, session.step) for name, session in books.sessions.items() if session.state == "trained"}
    problems = (
        _named("(session, step) that the learner trained and the ledger does not call trained", recorded - booked),
        _named("(session, step) that the ledger calls trained and the learner did not train", booked - recorded),
    )
    return "; ".join(problem for problem in problems if problem)


def _without_trajectory(books: Books) -> str:
    """A trained session's record has the attempt, the reward and the tokens that the ledger books."""
    absent = []
    for session_id in books.trained_ids:
        session = books.sessions.get(session_id)
        if session is None:
            continue  # _learner_and_ledger says so
        booked = Graded(session.attempt, session.reward, session.tokens or 0)
        if booked not in books.graded.get(session_id, ()):
            absent.append(session_id)
    return _named("trained sessions without the trajectory that the ledger books", absent)


def _named(what: str, names: Any) -> str:
    names = sorted(names, key=str)
    return f"{len(names)} {what}: {', '.join(map(str, names[:SHOWN]))}" if names else ""
