"""Whether the three records of a run agree: each disagreement is made by hand and found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chaos_run.books import Books, imbalances, read_books, retrained

LEDGER = """
create table sessions (session_id text, state text, reason text, step integer, group_id text, member integer,
                       attempt integer, reward real, tokens integer);
create table facts (name text, value text);
"""
STEPS = 2


class Folder:
    """A run of two steps with two sessions each, and one that was dropped; tests change it before it is written."""

    def __init__(self) -> None:
        self.issued = 5
        self.rows: list[list[Any]] = [
            ["a", "trained", None, 1, "g0", 0, 0, 1.0, 3],
            ["b", "trained", None, 1, "g0", 1, 0, 0.0, 3],
            ["c", "trained", None, 2, "g1", 0, 0, 1.0, 3],
            ["d", "trained", None, 2, "g1", 1, 1, 0.0, 3],
            ["e", "dropped", "lost", None, "g2", 0, 2, None, None],
        ]
        self.trained: list[tuple[int, list[str]]] = [(1, ["a", "b"]), (2, ["c", "d"])]
        self.graded = {
            "grader-0": [graded("a"), graded("b", reward=0.0), graded("d", reward=1.0), graded("x", purpose="eval")],
            "grader-1": [graded("c"), graded("d", reward=0.0, attempt=1)],
        }

    def books(self, folder: Path) -> Books:
        with sqlite3.connect(folder / "ledger.sqlite") as database:
            database.executescript(LEDGER)
            database.executemany("insert into sessions values (?,?,?,?,?,?,?,?,?)", self.rows)
            database.execute("insert into facts values ('issued', ?)", (str(self.issued),))
        database.close()
        lines = [{"step": step, "session_ids": ids} for step, ids in self.trained]
        (folder / "trained.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "trajectories").mkdir()
        for name, records in self.graded.items():
            text = "".join(json.dumps(record) + "\n" for record in records)
            (folder / "trajectories" / f"{name}.jsonl").write_text(text)
        return read_books(folder)


def graded(session_id: str, *, reward: float = 1.0, attempt: int = 0, purpose: str = "train") -> dict[str, Any]:
    return {
        "session_id": session_id,
        "attempt": attempt,
        "purpose": purpose,
        "reward": reward,
        "loss_mask": [0, 0, 1, 1, 1],
    }


def test_books_that_agree(tmp_path: Path) -> None:
    books = Folder().books(tmp_path)
    assert imbalances(books, STEPS) == []
    assert retrained(books) == 0
    assert books.dropped() == {"lost": 1}


def issue_one_more(folder: Folder) -> None:
    folder.issued += 1


def leave_one_open(folder: Folder) -> None:
    folder.rows[4][1:3] = ["grading", None]


def drop_without_reason(folder: Folder) -> None:
    folder.rows[4][2] = None


def lose_a_step(folder: Folder) -> None:
    del folder.trained[0]


def say_a_step_twice(folder: Folder) -> None:
    folder.trained[1] = (1, ["c", "d"])


def train_what_is_not_booked(folder: Folder) -> None:
    folder.rows[0][1:4] = ["dropped", "rolled_back", None]


def book_what_was_not_trained(folder: Folder) -> None:
    folder.trained[0] = (1, ["a"])


def train_in_another_step(folder: Folder) -> None:
    folder.rows[0][3] = 2


def lose_a_trajectory(folder: Folder) -> None:
    del folder.graded["grader-1"][0]


def keep_another_attempt_only(folder: Folder) -> None:
    del folder.graded["grader-1"][1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (issue_one_more, "issued 6 sessions and has 5"),
        (leave_one_open, "never ended: {'grading': 1}"),
        (drop_without_reason, "without a reason"),
        (lose_a_step, "missing [1]"),
        (say_a_step_twice, "missing [2]"),
        (train_what_is_not_booked, "the ledger does not call trained: ('a', 1)"),
        (book_what_was_not_trained, "the learner did not train: ('b', 1)"),
        (train_in_another_step, "the learner did not train: ('a', 2)"),
        (lose_a_trajectory, "1 trained sessions without the trajectory that the ledger books: c"),
        (keep_another_attempt_only, "1 trained sessions without the trajectory that the ledger books: d"),
    ],
)
def test_a_disagreement_is_found(change: Callable[[Folder], None], said: str, tmp_path: Path) -> None:
    folder = Folder()
    change(folder)
    assert said in " | ".join(imbalances(folder.books(tmp_path), STEPS))


def test_a_session_in_two_steps_is_trained_twice(tmp_path: Path) -> None:
    folder = Folder()
    folder.trained[1] = (2, ["c", "a"])
    assert retrained(folder.books(tmp_path)) == 1


def test_a_tasks_session_under_a_second_id_is_trained_twice(tmp_path: Path) -> None:
    folder = Folder()
    folder.rows[2][4:6] = ["g0", 1]
    assert retrained(folder.books(tmp_path)) == 1
