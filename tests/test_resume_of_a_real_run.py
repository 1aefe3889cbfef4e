"""A run that is killed and resumed by the command line: nothing is lost or repeated; in sync mode nothing changes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

LAUNCH = [sys.executable, "-m", "headrace.launch.cli", "launch"]
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "resume.py"
EXACT = (
    "experiment=smoke",
    "mode=sync",
    "launch=inprocess",
    "generator.engine.max_batch=1",  # log-probs then do not depend on who else is being decoded
    "learner.num_threads=1",
    "learner.checkpoint_every_steps=3",
    "learner.checkpoint_async=false",  # saved when the step is over, whatever the disk does
    "evaluation.every_steps=5",
    "training.max_steps=12",
)
KILLED_AFTER = 5


def launch(place: Path, *overrides: str) -> None:
    place.mkdir(exist_ok=True)
    done = subprocess.run([*LAUNCH, *overrides], cwd=place, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def curve(place: Path) -> dict[float, tuple[float, float, float]]:
    """Step → loss, gradient norm, reward; the last that was said of a step."""
    steps: dict[float, tuple[float, float, float]] = {}
    for line in (place / "runs" / "latest" / "metrics.jsonl").read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        if record["stream"] == "train":
            values = record["values"]
            steps[record["step"]] = (values["loss"], values["grad_norm"], values["reward/mean"])
    return steps


@pytest.mark.slow
def test_in_sync_mode_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    launch(straight, *EXACT)
    broken.mkdir()
    killed = subprocess.Popen(
        [*LAUNCH, *EXACT], cwd=broken, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    trained = broken / "runs" / "latest" / "trained.jsonl"
    while killed.poll() is None and not (trained.is_file() and trained.read_bytes().count(b"\n") >= KILLED_AFTER):
        time.sleep(0.01)
    killed.kill()
    assert killed.wait(timeout=30) == -signal.SIGKILL, "it ended before it could be killed"
    launch(broken, "resume=runs/latest")
    steps = [json.loads(line)["step"] for line in trained.read_text().splitlines()]
    assert steps == list(range(1, 13))
    whole, resumed = curve(straight), curve(broken)
    told = [step for step in whole if step in resumed]  # the monitor of the first life had not written its last steps
    assert set(told) >= set(range(KILLED_AFTER + 2, 13))
    assert [resumed[step] for step in told] == [whole[step] for step in told]


@pytest.mark.slow
def test_a_run_that_is_killed_time_and_again_loses_and_repeats_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--kills", "2", "--seed", "3", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["kills"]) == 2
    assert (figures["problems"], figures["repeated"]) == ([], 0)
