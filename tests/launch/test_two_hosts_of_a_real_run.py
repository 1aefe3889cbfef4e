"""The smallest real run on two hosts: weights cross as deltas through a relay; whoever carries them may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [
    sys.executable, "-m", "headrace.launch.cli", "launch", "experiment=smoke", "topology=two_hosts", "weights=delta",
    "training.max_steps=40",
]  # fmt: skip


def process_of(run: Path, name: str) -> int | None:
    """The pid of that process of the run."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if name.encode() in words and any(word.startswith(str(run).encode()) for word in words):
            return int(entry.name)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("victim", [None, "relay-0", "parameter_server-0"])
def test_a_real_run_on_two_hosts(victim: str | None, tmp_path: Path, until: Callable[..., None]) -> None:
    log = tmp_path / "console"
    with log.open("w") as output:
        launcher = subprocess.Popen(COMMAND, cwd=tmp_path, stdout=output, stderr=output)
    try:
        until(lambda: "evaluation of version 1 " in log.read_text(), 200, "training has begun")
        if victim is not None:
            pid = process_of(tmp_path, victim)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        assert launcher.wait(timeout=200) == 0, log.read_text()[-4000:]
    finally:
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()
    run = (tmp_path / "runs" / "latest").resolve()
    report = json.loads((run / "report.json").read_text())
    assert report["steps"] == 40
    assert report["ledger"]["balanced"] is True
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    relayed = {int(r["step"]): r["values"] for r in records if r["stream"] == "weights/relay-0"}
    served = {int(r["step"]) for r in records if r["stream"] == "weights"}
    assert served <= relayed.keys(), "two generators and an evaluator: each version came once"
    assert any(values["received_bytes"] < values["nbytes"] for values in relayed.values())
    outcome = json.loads((run / "outcome.json").read_text())
    assert outcome["restarts"] == ({} if victim is None else {victim: 1})
