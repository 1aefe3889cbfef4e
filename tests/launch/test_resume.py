"""headrace launch resume=RUN: what is composed again, what may not change, and a folder that is left as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.cli import main
from headrace.launch.compose import compose_config
from headrace.launch.problems import ConfigError
from headrace.launch.resume import (
    check_same_data,
    compose_again,
    find_earlier,
    lives,
    reopen_folder,
    seconds_before,
    split_resume,
)
from headrace.launch.run_folder import lock_run_folder, read_config, write_config, write_json

GIVEN = ("experiment=smoke", "training.max_steps=6", "learner/kl=k2", "+tasks.num=5")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a launch left that was finished at step 6."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "2026-01-01" / "120000-smoke"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "learner-0.log").write_text("the first life\n")
    write_config(folder, compose_config(GIVEN).resolve(dir=str(folder), id="one"))
    write_json(folder / "provenance.json", {"overrides": GIVEN, "config_dirs": [], "data_hash": "abc"})
    write_json(folder / "outcome.json", {"ending": "finished", "wall_s": 12.5})
    checkpoint = folder / "checkpoints" / "step-000006"
    checkpoint.mkdir(parents=True)
    (checkpoint / "checkpoint.json").write_text(json.dumps({"step": 6, "version": 7, "version_step": 6}))
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def reopen(run: Path, *overrides: str) -> Any:
    earlier = find_earlier(Path("runs"), str(run))
    return reopen_folder(compose_again(earlier, overrides), earlier)


def test_resume_is_taken_out_of_the_overrides() -> None:
    assert split_resume(["a=1", "resume=runs/latest", "b=2"]) == ("runs/latest", ("a=1", "b=2"))
    assert split_resume(["a=1"]) == (None, ("a=1",))
    with pytest.raises(ConfigError, match="resume: got 'x y'; allowed: one run folder"):
        split_resume(["resume=x", "resume=y"])
    with pytest.raises(ConfigError, match="as in resume=runs/latest"):
        split_resume(["resume="])


def test_what_was_given_before_holds_and_what_is_given_now_comes_after(run: Path) -> None:
    earlier = find_earlier(Path("runs"), str(run))
    composed = compose_again(earlier, ["training.max_steps=9", "learner/kl=none"])
    config = composed.resolve(dir="d", id="i")
    assert config["learner"]["max_steps"] == 9
    assert config["learner"]["kl"] is None
    assert config["tasks"]["num"] == 5
    assert composed.overrides == ("experiment=smoke", "+tasks.num=5", "training.max_steps=9", "learner/kl=none")


def test_the_folder_is_taken_with_what_the_first_launch_left_put_aside(run: Path) -> None:
    prepared, changes = reopen(run, "training.max_steps=9", "learner.lr=1e-4", "run.name=other")
    with prepared.lock:
        assert prepared.path == run
        assert read_config(run)["run"]["name"] == "smoke"
        assert prepared.config["training"]["max_steps"] == 9
        assert changes == ["training.max_steps: 6 → 9", "learner.lr: 0.001 → 0.0001"]
        (life,) = lives(run)
        assert (life / "logs" / "learner-0.log").read_text() == "the first life\n"
        assert {path.name for path in life.iterdir()} == {"config.yaml", "provenance.json", "outcome.json", "logs"}
        assert list((run / "logs").iterdir()) == []
        assert seconds_before(run) == 12.5


def test_what_cannot_work_leaves_the_folder_as_it_was(run: Path) -> None:
    before = tree(run)
    prepared, _ = reopen(run, "training.max_steps=9")
    prepared.abandon()
    assert tree(run) == before
    assert not (run / "lives").exists()
    prepared, _ = reopen(run, "training.max_steps=9")
    prepared.abandon()
    assert tree(run) == before


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("seed=1", "seed: got 1; allowed: 0, as the run began"),
        ("training.group_size=8", "training.group_size: got 8; allowed: 4, as the run began"),
        ("model=scratch_llama", "model.hidden_size: got"),
        ("learner/lora=default", "learner.lora"),
        ("+tasks.num=6", "tasks.num: got 6; allowed: 5, as the run began"),
    ],
)
def test_what_checkpoint_and_journal_were_made_with_is_fixed(run: Path, override: str, says: str) -> None:
    before = tree(run)
    with pytest.raises(ConfigError) as caught:
        reopen(run, "training.max_steps=9", override)
    assert says in str(caught.value)
    assert tree(run) == before
    lock = lock_run_folder(run)
    assert lock is not None, "the folder is let go"
    lock.close()


def test_a_finished_run_needs_more_steps(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.max_steps: got 6; allowed: an integer > 6; the run is finished"):
        reopen(run)
    (run / "outcome.json").unlink()  # killed in its last evaluation
    reopen(run)[0].abandon()


def test_a_run_that_goes_on_is_left_alone(run: Path) -> None:
    lock = lock_run_folder(run)
    assert lock is not None
    before = tree(run)
    with pytest.raises(ConfigError, match="allowed: a run that has ended; it is running; wait for its end"):
        reopen(run, "training.max_steps=9")
    assert tree(run) == before
    lock.close()
    reopen(run, "training.max_steps=9")[0].abandon()


def test_the_tasks_must_be_those_of_the_beginning(run: Path) -> None:
    earlier = find_earlier(Path("runs"), str(run))
    check_same_data(earlier, "abc")
    check_same_data(earlier, None)
    with pytest.raises(ConfigError, match=r"tasks: got .*'def'; allowed: .*'abc', with which the run began"):
        check_same_data(earlier, "def")


def test_a_launch_that_was_killed_before_its_start_does_not_count(run: Path) -> None:
    """Its folder holds a configuration that nothing has run."""
    prepared, _ = reopen(run, "training.max_steps=9")
    prepared.lock.close()  # killed here: nothing is put back
    prepared, changes = reopen(run, "training.max_steps=8")
    with prepared.lock:
        assert changes == ["training.max_steps: 6 → 8"]
        assert prepared.config["training"]["max_steps"] == 8
    assert [life.name for life in lives(run)] == ["1", "2"]


@pytest.mark.parametrize("what", ["nowhere", "no run", "never started", "damaged"])
def test_what_is_no_run_is_named(run: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    if what == "no run":
        (run / "config.yaml").unlink()
    if what == "never started":
        (run / "provenance.json").unlink()
    if what == "damaged":
        (run / "provenance.json").write_text("[]")
    if what == "nowhere":
        shutil.rmtree(run)
    assert main(["launch", f"resume={run}"]) == 2
    said = capsys.readouterr().err
    assert "resume: got" in said
    assert "allowed: a folder of a run that was started" in said
