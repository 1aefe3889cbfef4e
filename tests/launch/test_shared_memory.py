"""Shared-memory files: removed with their run, and after a run that was killed; never those of a living one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.launch.shared_memory import prefix_of, remove_leftovers, remove_run, run_id


def test_a_run_removes_its_own(tmp_path: Path) -> None:
    """cases I124: only files of the run's own id."""
    for name in (f"{prefix_of('1.2.3')}-weights-0", f"{prefix_of('1.2.34')}-weights-0", "other"):
        (tmp_path / name).touch()
    assert remove_run("1.2.3", tmp_path) == ["headrace-1.2.3-weights-0"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["headrace-1.2.34-weights-0", "other"]
    assert remove_run("1.2.3", tmp_path) == []


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    code = "from headrace.launch.shared_memory import run_id; print(run_id())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    alive = run_id()
    foreign = f"1.{dead.partition('.')[2]}"  # of another PID namespace: whether it lives cannot be seen from here
    kept = {f"{prefix_of(alive)}-a", f"{prefix_of(foreign)}-a", "headrace-x.y.z-a", "unrelated"}
    for name in {*kept, f"{prefix_of(dead)}-a"}:
        (tmp_path / name).touch()
    assert remove_leftovers(tmp_path) == [f"headrace-{dead}-a"]
    assert {p.name for p in tmp_path.iterdir()} == kept


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert remove_leftovers(tmp_path / "none") == []
