"""The smallest real run with a learner of two ranks: one that is killed restarts the learner from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [
    *(sys.executable, "-m", "headrace.launch.cli", "launch", "experiment=smoke"),
    *("generator/engine=torch", "evaluator/engine=torch", "learner.pretrain.steps=40"),
    *("learner.num_ranks=2", "topology.nodes.local.actors.learner_rank.count=1"),
    *("training.max_steps=40", "learner.checkpoint_every_steps=5"),
]


def until(fact: Callable[[], object], timeout_s: float, what: str) -> None:
    """Other processes bring it about."""
    deadline_s = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def process_of(folder: Path, name: str) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = (entry / "cmdline").read_bytes().split(b"\0") if (entry / "cmdline").exists() else []
            if name.encode() in words and any(os.fsencode(folder) in word for word in words):
                return int(entry.name)
    raise AssertionError(f"no process {name}")


@pytest.mark.slow
def test_a_real_run_survives_the_loss_of_a_rank_and_of_the_learner(tmp_path: Path) -> None:
    log = tmp_path / "console"

    def trained() -> int:
        path = tmp_path / "runs" / "latest" / "trained.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    with log.open("w") as output:
        launcher = subprocess.Popen(COMMAND, cwd=tmp_path, stdout=output, stderr=output)
    try:
        for name, step in (("learner_rank-0", 7), ("learner-0", 20)):
            until(lambda step=step: trained() >= step or launcher.poll() is not None, 250, f"step {step}")
            os.kill(process_of(tmp_path, name), signal.SIGKILL)
        assert launcher.wait(timeout=250) == 0, log.read_text()[-4000:]
    finally:
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()
    run = (tmp_path / "runs" / "latest").resolve()
    outcome = json.loads((run / "outcome.json").read_text())
    assert outcome["restarts"].keys() >= {"learner-0", "learner_rank-0"}
    report = json.loads((run / "report.json").read_text())
    assert report["steps"] == 40
    assert report["ledger"]["balanced"] is True
    newest = (run / "checkpoints" / "latest").resolve()
    assert newest.name == "step-000040"
    assert {path.suffix for path in (newest / "optimizer").iterdir()} >= {".distcp"}
    names = [session for line in (run / "trained.jsonl").open() for session in json.loads(line)["session_ids"]]
    assert len(names) == len(set(names)), "each session is trained once"
