"""Shared-memory files: removed with their run, and after a run that was killed; never those of a living one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.launch.shared_memory import FOLDER, prefix_of, remove_leftovers, remove_run, run_id
from headrace.launch.undertaker import follow


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


MAP_A_FILE = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("launcher_dies", [False, True])
@pytest.mark.parametrize("still_in_use", [False, True])
def test_memory_that_a_killed_child_named_by_chance_is_removed(still_in_use: bool, launcher_dies: bool) -> None:
    """vLLM's queues are called psm_ and eight digits, and outlive a SIGKILL; what another living process maps stays."""
    path = FOLDER / f"psm_test_{run_id()}"
    path.write_bytes(bytes(4096))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", MAP_A_FILE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for _ in range(2 if still_in_use else 1)
    ]

    def lines() -> Iterator[str | None]:
        yield f"session {children[0].pid}"
        yield None
        children[0].kill()
        children[0].wait()
        if not launcher_dies:
            yield "done"

    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"mapped\n"
        follow(lines())
        assert path.exists() == still_in_use
    finally:
        path.unlink(missing_ok=True)
        for child in children:
            child.kill()
            child.wait()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            child.stdout.close()
