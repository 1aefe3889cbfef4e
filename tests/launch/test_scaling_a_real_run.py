"""The smallest real run, changed while it trains: generators and environments join and leave, one is killed while it
joins, and the end comes in the middle of a change. It still trains to its end, once, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

CLI = [sys.executable, "-m", "headrace.launch.cli"]
LAUNCH = [*CLI, "launch", "experiment=smoke", "evaluation.every_steps=100"]

Until = Callable[..., None]


class Run:
    """A launched run in `place`, and the second terminal."""

    def __init__(self, place: Path, until: Until, *overrides: str) -> None:
        self.place, self.until = place, until
        self.log = place / "console"
        with self.log.open("w") as output:
            self.launcher = subprocess.Popen([*LAUNCH, *overrides], cwd=place, stdout=output, stderr=output)
        until(lambda: self.said("evaluation of version 1 "), 200, "training has begun")
        self.folder = (place / "runs" / "latest").resolve()

    def said(self, text: str) -> bool:
        assert self.launcher.poll() is None or text in self.log.read_text(), self.log.read_text()[-4000:]
        return text in self.log.read_text()

    def scale(self, *arguments: str, code: int = 0) -> str:
        """What the command printed."""
        done = subprocess.run(
            [*CLI, "scale", *arguments], cwd=self.place, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr + self.log.read_text()[-4000:]
        return done.stdout + done.stderr

    def processes(self, name: str | None = None) -> list[int]:
        """Of this run, or those of that name."""
        wanted = {os.fsencode(self.folder), *([name.encode()] if name else [])}
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted <= set((entry / "cmdline").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def trained(self) -> int:
        """Optimizer steps so far."""
        return len((self.folder / "trained.jsonl").read_text().splitlines())

    def end(self) -> dict[str, Any]:
        """Its report, once it has finished; nobody is left."""
        assert self.launcher.wait(timeout=200) == 0, self.log.read_text()[-4000:]
        assert self.processes() == []
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return report


@pytest.fixture
def launched(tmp_path: Path, until: Until) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def launch(*overrides: str) -> Run:
        runs.append(Run(tmp_path, until, *overrides))
        return runs[-1]

    yield launch
    for run in runs:
        if run.launcher.poll() is None:
            run.launcher.send_signal(signal.SIGTERM)
            run.launcher.wait(60)


def check_books(run: Run, report: dict[str, Any], *, max_attempt: int) -> None:
    """Nothing was trained twice or lost, and no session needed more attempts than that."""
    steps = report["steps"]
    assert report["ledger"]["balanced"] is True
    assert report["ledger"]["trained"] == report["ledger"]["learner_trained"] == steps * 16
    # over_age: where a joiner takes the machine for a while, what was sampled before may be too old by its turn
    reasons = {"zero_variance", "cancelled", "over_age"}
    assert {name for name, count in report["ledger"]["dropped"].items() if count} <= reasons
    lines = [json.loads(line) for line in (run.folder / "trained.jsonl").read_text().splitlines()]
    sessions = [session_id for line in lines for session_id in line["session_ids"]]
    assert len(sessions) == len(set(sessions)) == steps * 16
    with closing(sqlite3.connect(run.folder / "ledger.sqlite")) as database:
        assert database.execute("select max(attempt) from sessions").fetchone()[0] <= max_attempt


@pytest.mark.slow
def test_generators_and_environments_join_and_leave(launched: Callable[..., Run]) -> None:
    run = launched("training.max_steps=600", "learner.lr=1e-6")
    assert "generator-1 has joined: it serves version " in run.scale("generator=2")
    assert "environment-1 has joined" in run.scale("environment=2")
    before = run.trained()
    run.until(lambda: run.trained() > before + 5, 100, "both train on")
    counts = run.scale()
    assert "generator=2" in counts
    assert "generator/0 generator/1" in counts
    for role in ("generator", "environment"):
        said = run.scale(f"{role}=1")
        assert f"{role}-1 has left: it finished what it had (exit code 0)" in said
        assert run.processes(f"{role}-1") == []
    report = run.end()
    assert report["steps"] == 600
    assert [(c["event"], c["actors"], c["count"]) for c in report["membership"]] == [
        ("joined", ["generator/1"], 2), ("joined", ["environment/1"], 2),
        ("left", ["generator/1"], 1), ("left", ["environment/1"], 1),
    ]  # fmt: skip
    assert json.loads((run.folder / "outcome.json").read_text())["restarts"] == {}
    assert report["weight_updates"]["failed"] == 0
    check_books(run, report, max_attempt=0)
    actors = json.loads((run.folder / "activity.json").read_text())["actors"]
    assert actors["generator/1"]["mailbox"]["handled"] > 20, "it has sampled sessions"
    assert actors["environment/1"]["mailbox"]["handled"] > 2, "it has run sessions"


@pytest.mark.slow
def test_a_joiner_that_is_killed_joins_all_the_same(launched: Callable[..., Run]) -> None:
    run = launched("training.max_steps=600", "learner.lr=1e-6")
    change = subprocess.Popen([*CLI, "scale", "generator=2"], cwd=run.place, stdout=subprocess.PIPE, text=True)
    run.until(lambda: run.processes("generator-1"), 60, "it is starting")
    assert "a change to generator=2 is under way" in run.scale("generator=3", code=1)
    os.kill(run.processes("generator-1")[0], signal.SIGKILL)
    said, _ = change.communicate(timeout=200)
    assert change.returncode == 0, said
    assert "generator-1 has joined: it serves version " in said
    assert run.said("generator-1 ended (signal 9); it is started again")
    report = run.end()
    assert json.loads((run.folder / "outcome.json").read_text())["restarts"] == {"generator-1": 1}
    check_books(run, report, max_attempt=0)


@pytest.mark.slow
def test_the_run_ends_in_the_middle_of_a_change(launched: Callable[..., Run]) -> None:
    run = launched("training.max_steps=100000")
    change = subprocess.Popen(
        [*CLI, "scale", "generator=2"], cwd=run.place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    run.until(lambda: run.processes("generator-1"), 60, "it is starting")
    run.launcher.send_signal(signal.SIGTERM)
    said, _ = change.communicate(timeout=60)
    assert change.returncode == 1, said
    assert "the run is ending (terminated)" in said or "the run has ended" in said
    assert run.launcher.wait(60) == 143
    assert run.processes() == []
    assert "is not running any more: it has ended" in run.scale("generator=2", code=1)
    assert json.loads((run.folder / "report.json").read_text())["ledger"]["balanced"] is True
