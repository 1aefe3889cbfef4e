"""The command line: exit codes, what is printed, and that a bad configuration leaves nothing behind."""

from __future__ import annotations

import errno
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


def test_the_resolved_configuration_is_printed_before_there_is_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--cfg", "job", "--resolve", "experiment=smoke", "seed=7"]) == 0
    printed: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    assert printed["dispatcher"]["seed"] == 7
    assert printed["dispatcher"]["ledger_path"] == "<run.dir>/ledger.sqlite"
    assert main(["launch", "--cfg", "job", "--resolve", "model=path"]) == 2
    assert "set it: model.path=…" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "scale"])
def test_before_the_first_run_there_is_none(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 1
    assert "there is no run in runs here yet; headrace launch begins one" in capsys.readouterr().err


def test_overrides_may_stand_before_and_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "experiment=smoke", "--cfg", "job", "seed=7", "--resolve", "run.name=x"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["seed"], printed["run"]["name"], printed["model"]["hidden_size"]) == (7, "x", 32)
    assert main(["report", "a", "b"]) == 2
    assert "unknown argument 'b'" in capsys.readouterr().err


def test_multirun_composes_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-m", "--cfg", "job", "seed=1,2"]) == 0
    assert [job["seed"] for job in yaml.safe_load_all(capsys.readouterr().out)] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["launch", "learner.lrr=1"], "did you mean 'lr'?"),
        (["launch", "model=path"], "set it: model.path=…"),
        (["launch", "--confg-dir", "x"], "unknown option"),
        (["launch", "--config-name=foo"], "--config-name: got 'foo'; allowed: launch; the root of"),
        (["launch", "mode=bogus"], "mode: got 'bogus'; allowed: async, sync;"),
        (["launch", "+run.dir=/tmp/x"], "run.dir: got '/tmp/x'; allowed: name, root; the launcher chooses"),
        (["launch", "launch.silence_s=0.5"], "launch.silence_s: got 0.5;"),
        (
            ["launch", "weights=nccl", "weights.communicator=foo"],
            "weights.communicator: got 'foo'; allowed: one of auto",
        ),
        (["launch", "weights=shm", "learner.weights_communicator=x"], "learner.weights_communicator: got 'x'"),
    ],
)
def test_what_cannot_work_is_exit_code_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
    assert not list(Path().rglob("*"))


@pytest.mark.parametrize("value", ["null", "[1]", "''", "file/below", "/proc/none"])
def test_a_root_that_cannot_hold_runs_is_exit_code_2(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["launch", "experiment=smoke", f"run.root={value}"]) == 2
    assert "run.root: got" in capsys.readouterr().err
    assert [path.name for path in Path().rglob("*")] == ["file"]


@pytest.mark.parametrize("name", ["null", "a" * 300, "a/b"])
def test_a_name_that_is_no_folder_name_is_exit_code_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "experiment=smoke", f"run.name={name}"]) == 2
    assert "run.name: got" in capsys.readouterr().err
    assert not list(Path().rglob("*"))


def test_a_damaged_run_folder_has_a_report_that_names_the_file(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (b"a: [", b"\xff\xfe", b"7"):
        (elsewhere / "config.yaml").write_bytes(text)
        assert main(["report", str(elsewhere)]) == 0
        assert "DAMAGED          config.yaml: " in capsys.readouterr().out


@pytest.mark.parametrize("target", ["there", "config.yaml", "config.yaml/below"])
def test_an_export_to_a_place_that_is_taken_is_one_line(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.yaml").write_text("{}")
    Path("there").mkdir()
    assert main(["export", ".", target]) == 1
    said = capsys.readouterr().err
    assert "name a folder that does not exist yet" in said
    assert said.count("\n") == 1


def test_an_error_of_the_system_is_one_line_with_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/report.json")

    monkeypatch.setattr("headrace.launch.cli.find_run", full)
    assert main(["report"]) == 1
    assert capsys.readouterr().err == (
        "headrace: No space left on device: runs/report.json; make room there, or set run.root to a folder with more\n"
    )


@pytest.mark.slow
def test_preflight_problems_leave_no_run_folder(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["experiment=smoke", "model=path", "model.path=none/at/all", "training.batch_sessions=18"]
    assert main(["launch", *arguments]) == 2
    assert "training.batch_sessions" in capsys.readouterr().err
    assert main(["launch", *arguments[:-1]]) == 2
    assert "model.path" in capsys.readouterr().err
    assert not list((elsewhere / "runs").glob("*/*"))


@pytest.mark.parametrize("how", ["sys_exit", "os_exit"])
def test_a_constructor_that_ends_its_process_is_named(
    how: str, plugins: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    topology = ["topology.nodes={}", "~topology.nodes.local", "+topology.nodes.n={actors: {leaver: {count: 1}}}"]
    leaver = f"+leaver={{_target_: run_plugins.Leaver, how: {how}}}"
    assert main(["launch", "experiment=smoke", *topology, leaver]) == 2
    printed = capsys.readouterr().err
    assert "leaver: got 'run_plugins.Leaver'; allowed: a constructor that returns; it " in printed
    assert not list(Path().rglob("*"))


def test_a_damaged_journal_is_found_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ledger").write_bytes(bytes(range(256)) * 80)
    assert main(["launch", "experiment=smoke", "dispatcher.ledger_path=ledger"]) == 2
    assert "dispatcher.ledger_path: got 'ledger'; allowed: a journal that can be" in capsys.readouterr().err
    assert [path.name for path in Path().rglob("*")] == ["ledger"]
