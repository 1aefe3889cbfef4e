"""The journal's file: what a killed writer had committed is there, and a file that is no journal is named."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.actors.dispatcher.journal import Journal, JournalDamaged
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.session import SessionSpec, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]

WRITER = """
import sys
from headrace.actors.dispatcher.journal import Journal
from headrace.actors.dispatcher.ledger import LedgerChanges
journal = Journal(sys.argv[1])
number = 0
while True:
    number += 1
    journal.write(LedgerChanges(None, ()), {number: number}, {"next_task": number})
    print(number, flush=True)
"""


@pytest.mark.parametrize("after", [1, 100, 3000])
def test_a_killed_writer_loses_nothing_that_it_had_committed(tmp_path: Path, after: int) -> None:
    path = tmp_path / "ledger.sqlite"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        last = 0
        for line in writer.stdout:
            if line.endswith("\n"):
                last = int(line)
            if last == after:
                os.kill(writer.pid, signal.SIGKILL)
    snapshot = Journal(str(path)).load()
    assert snapshot is not None
    assert snapshot.facts["next_task"] - last in (0, 1), "the next one may have been committed and not said"
    assert snapshot.versions == {number: number for number in range(1, snapshot.facts["next_task"] + 1)}


def test_a_new_file_holds_nothing_and_each_life_is_counted(tmp_path: Path, tasks: TaskSource) -> None:
    path = str(tmp_path / "a" / "ledger.sqlite")
    for _ in range(2):
        journal = Journal(path)
        assert journal.load() is None
        journal.close()
    journal = Journal(path)
    journal.write(TrainingSessions(_settings(), tasks).ledger.take_changes(), {}, {"next_task": 0})
    snapshot = journal.load()
    assert snapshot is not None
    assert snapshot.num_lives == 2


def test_after_the_end_one_plain_file_is_left(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "ledger.sqlite"))
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


@pytest.mark.parametrize("content", [b"this is no database " * 400, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(JournalDamaged, match=r"ledger\.sqlite cannot be used as the dispatcher's journal"):
        Journal(str(path))


def test_a_file_of_another_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Journal(str(path)).close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update facts set value = '99' where name = 'format'")
    with pytest.raises(JournalDamaged, match="format 99, this release writes format 2"):
        Journal(str(path))


def test_a_trajectory_is_kept_to_the_bit_until_its_session_ends(tasks: TaskSource, make_trajectory: Make) -> None:
    journal = Journal()
    training = TrainingSessions(_settings(), tasks)
    training.served(1, 0)
    spec = training.next_session(0.0)
    assert spec is not None
    training.started(spec.session_id, "environment/0", 0.0)
    graded = make_trajectory(spec, [1] * 20_000, 0.25)  # its arrays are frames of their own
    training.graded(graded)
    journal.write(training.ledger.take_changes(), training.versions.take_changes(), training.facts())
    snapshot = journal.load()
    assert snapshot is not None
    kept = next(saved.trajectory for saved in snapshot.sessions if saved.session_id == spec.session_id)
    assert kept is not None
    assert kept.spec == spec
    assert kept.reward == 0.25
    for name in ("token_ids", "logprobs", "loss_mask", "versions"):
        assert (getattr(kept, name) == getattr(graded, name)).all(), name
        assert getattr(kept, name).dtype == getattr(graded, name).dtype, name
    training.finish()
    journal.write(training.ledger.take_changes(), {}, training.facts())
    assert list(journal._database.execute("select * from trajectories")) == []


def _settings() -> TrainingSettings:
    return TrainingSettings(group_size=2, batch_sessions=4, max_lag_versions=1)
