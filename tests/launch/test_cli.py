"""The command line: exit codes, what is printed, and that a bad configuration leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.launch.cli import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_composed_configuration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--cfg", "job", "experiment=smoke", "seed=7"]) == 0
    printed: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert printed["seed"] == 7
    assert printed["dispatcher"]["seed"] == "${seed}"


def test_multirun_composes_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-m", "--cfg", "job", "seed=1,2"]) == 0
    assert [job["seed"] for job in yaml.safe_load_all(capsys.readouterr().out)] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["launch", "learner.lrr=1"], "did you mean 'lr'?"),
        (["launch", "model=path"], "set it: model.path=…"),
        (["launch", "--confg-dir", "x"], "unknown option"),
    ],
)
def test_what_cannot_work_is_exit_code_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
    assert not list(Path().rglob("*"))


def test_no_run_to_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 1
    assert "runs/latest" in capsys.readouterr().err


@pytest.mark.slow
def test_preflight_problems_leave_no_run_folder(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["experiment=smoke", "model=path", "model.path=none/at/all", "training.batch_sessions=18"]
    assert main(["launch", *arguments]) == 2
    assert "training.batch_sessions" in capsys.readouterr().err
    assert main(["launch", *arguments[:-1]]) == 2
    assert "model.path" in capsys.readouterr().err
    assert not list((elsewhere / "runs").glob("*/*"))
