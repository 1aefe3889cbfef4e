"""What the journal costs the dispatcher: sessions that go all their way through it.

    python benchmarks/ledger.py [--quick] [--json FILE]

Each session has 2,000 tokens, in groups of 8; transactions are as far apart as they are in a run at `rate` sessions/s.
`share_at_500_per_s` is the share of one core that the journal takes at 500 sessions/s, by CPU time: the dispatcher's
loop runs on one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from headrace.actors.dispatcher.commits import COMMIT_AFTER_S
from headrace.actors.dispatcher.journal import Journal
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.session import ChatMessage, SessionSpec, Task, Trajectory

TOKENS = 2000
GROUP, BATCH = 8, 64


class Tasks:
    def task(self, index: int) -> Task:
        return Task(f"t{index}", "benchmark", (ChatMessage("user", f"problem {index}"),), str(index))

    def held_out(self, num: int) -> list[Task]:
        return []

    def fingerprint(self) -> str:
        return "benchmark"


def trajectory(spec: SessionSpec, version: int) -> Trajectory:
    mask = np.arange(TOKENS) >= 200
    return Trajectory(
        spec=spec,
        token_ids=np.arange(TOKENS, dtype=np.int32),
        logprobs=np.where(mask, np.float32(-0.5), np.float32(0)),
        loss_mask=mask,
        versions=np.where(mask, np.int32(version), np.int32(-1)),
        turns=(),
        messages=(ChatMessage("user", "a problem " * 50), ChatMessage("assistant", "an answer " * 500)),
        ending="done",
        reward=float(spec.member % 2),
    )


class Clockwork:
    """The dispatcher's state machine, and a journal that is written as often as a run of `rate` sessions/s would."""

    def __init__(self, journal: Journal | None, rate: float) -> None:
        settings = TrainingSettings(group_size=GROUP, batch_sessions=BATCH, max_lag_versions=2, over_age="train")
        self.training = TrainingSessions(settings, Tasks())
        self.journal = journal
        self.num_changes = self.num_commits = 0
        self.journal_s = 0.0
        self.slowest_s = 0.0
        # five changes of a session reach the journal: started, moved, graded, handed out, trained
        self._every = max(1, round(5 * rate * COMMIT_AFTER_S))

    def changed(self) -> None:
        self.num_changes += 1
        if self.journal is None or self.num_changes % self._every:
            return
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        training = self.training
        self.journal.write(training.ledger.take_changes(), training.versions.take_changes(), training.facts())
        self.journal_s += time.thread_time() - began_cpu_s
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began_s)
        self.num_commits += 1

    def run(self, steps: int) -> None:
        """`steps` optimizer steps."""
        training, version = self.training, 1
        training.served(version, 0)
        for step in range(steps):
            made: list[Trajectory] = []
            while (spec := training.next_session(0.0)) is not None:
                training.started(spec.session_id, "environment/0", 0.0)
                self.changed()
                made.append(trajectory(spec, version))
            for graded in made:
                training.moved(graded.spec.session_id, "grader/0")
                self.changed()
                training.graded(graded)
                self.changed()
            batch = training.take_batch(step)
            assert batch is not None
            ids = tuple(t.spec.session_id for group in batch.groups for t in group.trajectories)
            for _ in ids:
                self.changed()
            training.trained(step + 1, ids)
            for _ in ids:
                self.changed()
            version += 1
            training.served(version, step + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sessions")
    parser.add_argument("--rate", type=float, default=500.0, help="sessions/s of the run that is imitated")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    given = parser.parse_args()
    steps = 20 if given.quick else 200
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(str(Path(folder) / "ledger.sqlite"))
        clockwork = Clockwork(journal, given.rate)
        clockwork.run(steps)
        bytes_on_disk = sum(path.stat().st_size for path in Path(folder).iterdir())
        began_s = time.perf_counter()
        again = TrainingSessions(clockwork.training.settings, Tasks())
        snapshot = journal.load()
        assert snapshot is not None
        again.restore(snapshot, now_s=0.0)
        restore_s = time.perf_counter() - began_s
        journal.close()
    sessions = clockwork.training.ledger.issued
    figures = {
        "sessions": sessions,
        "commits": clockwork.num_commits,
        "us_per_session": 1e6 * clockwork.journal_s / sessions,
        "us_per_commit": 1e6 * clockwork.journal_s / clockwork.num_commits,
        "changes_per_s": clockwork.num_changes / clockwork.journal_s,
        "slowest_commit_ms": 1e3 * clockwork.slowest_s,
        "share_at_500_per_s": 500 * clockwork.journal_s / sessions,
        "restore_s": restore_s,
        "bytes_on_disk": bytes_on_disk,
    }
    for name, value in figures.items():
        print(f"{name:<20} {value:,.4g}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
