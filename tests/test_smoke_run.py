"""The whole system by its command line: the smallest run, with the torch engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "headrace.launch.cli", "launch", "experiment=smoke"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one finished smoke run."""
    place = tmp_path_factory.mktemp("smoke")
    done = subprocess.run(COMMAND, cwd=place, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return (place / "runs" / "latest").resolve()


@pytest.mark.slow
class TestSmokeRun:
    def test_the_folder_is_complete(self, run_folder: Path) -> None:
        names = {path.name for path in run_folder.iterdir()}
        assert names >= {
            "activity.json", "checkpoints", "config.yaml", "ledger.sqlite", "logs", "metrics.jsonl", "model",
            "outcome.json", "provenance.json", "report.html", "report.json", "tensorboard", "trained.jsonl",
            "trajectories",
        }  # fmt: skip
        assert json.loads((run_folder / "outcome.json").read_text())["ending"] == "finished"
        provenance = json.loads((run_folder / "provenance.json").read_text())
        assert provenance["data_hash"]
        assert provenance["packages"]["torch"]

    def test_every_session_ends_once_in_the_ledger(self, run_folder: Path) -> None:
        ledger = json.loads((run_folder / "report.json").read_text())["ledger"]
        assert ledger["trained"] == ledger["learner_trained"] == 20 * 16
        assert ledger["balanced"] is True

    def test_it_trains(self, run_folder: Path) -> None:
        """A loss or a weight update that does nothing must not look like success."""
        records = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
        steps = [record["values"] for record in records if record["stream"] == "train"]
        assert len(steps) == 20
        assert all(step["grad_norm"] > 0 for step in steps)
        rewards = [step["reward/mean"] for step in steps]
        assert 0 < sum(rewards) / len(rewards) < 1
        report = json.loads((run_folder / "report.json").read_text())
        assert report["weight_updates"]["count"] > 1
        assert report["logprob_gap"]["probe"]["mean"] < 1e-4, "the engine has the weights that the learner trained"

    def test_nothing_is_left(self, run_folder: Path) -> None:
        assert not [path for path in Path("/dev/shm").iterdir() if str(run_folder) in path.name]

    def test_the_report_is_printed(self, run_folder: Path) -> None:
        command = [sys.executable, "-m", "headrace.launch.cli", "report", str(run_folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(done.stdout)["mode"] == "async"

    def test_the_export_is_a_folder_that_transformers_loads(self, run_folder: Path, tmp_path: Path) -> None:
        target = tmp_path / "exported"
        command = [sys.executable, "-m", "headrace.launch.cli", "export", str(run_folder), str(target)]
        subprocess.run(command, check=True, timeout=120)
        code = "import sys; from transformers import AutoModelForCausalLM as M; M.from_pretrained(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, str(target)], check=True, timeout=120)


@pytest.mark.slow
def test_ctrl_c_in_mid_run_leaves_a_report(tmp_path: Path) -> None:
    """All processes are gone within 10 s of SIGINT and the report is written."""
    command = [*COMMAND, "training.max_steps=100000"]
    launcher = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if "all actors are up" in line:
            break
    launcher.send_signal(signal.SIGINT)
    rest = launcher.communicate(timeout=60)[0]
    assert launcher.returncode == 130, rest
    folder = (tmp_path / "runs" / "latest").resolve()
    assert (folder / "report.json").is_file()
    living = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _runs_in(entry, folder)]
    assert living == []


def _runs_in(process: Path, folder: Path) -> bool:
    try:
        return str(folder) in (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
