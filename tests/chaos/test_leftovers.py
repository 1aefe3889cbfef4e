"""What a run leaves on the machine is found, and how it ended is read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from chaos_run.leftovers import kill, leftovers, processes_of, segments_of, sockets_in
from chaos_run.plan import Phase, Position
from chaos_run.progress import read_position
from chaos_run.run import endings
from chaos_run.victims import victims


def test_a_process_is_found_by_its_environment_and_ended(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    code = "print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # Popen returns before exec is over, and /proc shows no environment until it is
        assert processes_of(tmp_path) == [process.pid]
        (left,) = leftovers(tmp_path, None, grace_s=0)
        assert left.startswith(f"process {process.pid}: ")
        kill(tmp_path)
    assert leftovers(tmp_path, None, grace_s=0) == []


def test_sockets_and_their_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    (tmp_path / "headrace-run-x").mkdir()
    (tmp_path / "of a library").write_text("")
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind("odd")
    assert [path.name for path in sockets_in(tmp_path)] == ["headrace-run-x", "odd"]
    assert len(leftovers(tmp_path, None, grace_s=0)) == 2


def test_shared_memory_is_found(tmp_path: Path) -> None:
    for name in ("headrace-1.2.3-weights-0", "headrace-1.2.4-weights-0", "psm_1"):
        (tmp_path / name).write_text("")
    assert [path.name for path in segments_of("1.2.3", tmp_path)] == ["headrace-1.2.3-weights-0"]


def test_what_the_launcher_says_of_the_end(tmp_path: Path) -> None:
    assert endings(None, tmp_path) == ["the launcher had not ended after 300 s"]
    assert endings(0, tmp_path) == ["the launcher ended with code 0 and left no outcome.json"]
    (tmp_path / "outcome.json").write_text(json.dumps({"ending": "failed", "reason": "why"}))
    assert endings(1, tmp_path) == ["the launcher ended with code 1: failed: why"]
    (tmp_path / "outcome.json").write_text(json.dumps({"ending": "finished", "reason": "done"}))
    assert endings(0, tmp_path) == []
    assert endings(-9, tmp_path) != []


def test_how_far_a_run_is(tmp_path: Path) -> None:
    assert read_position(tmp_path) == Position(Phase.STARTING, 0)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"stream":"grader","step":1.5}\n')
    assert read_position(tmp_path) == Position(Phase.STARTING, 0)
    metrics.write_text('{"stream":"pretrain","step":7.0}\n{"stream":"pre')
    assert read_position(tmp_path) == Position(Phase.PRETRAINING, 7)
    (tmp_path / "trained.jsonl").write_text('{"step":3,"session_ids":[]}\n{"step":4')
    assert read_position(tmp_path) == Position(Phase.TRAINING, 3)


def process(proc: Path, pid: int, words: list[str], *, parent: int = 1, state: str = "S") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    (proc / str(pid) / "stat").write_text(f"{pid} (python (x)) {state} {parent} 1 1")


def test_only_the_runs_own_processes_are_victims(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    run = "/runs/a"
    module = ["python", "-m", "headrace.launch.process"]
    process(tmp_path, 10, [*module, run, "parameter_server-0", "9"], parent=9)
    process(tmp_path, 11, ["python", "-m", "headrace.launch.node", run, "rollout", "9"], parent=9)
    process(tmp_path, 12, [*module, run, "grader-0", "9"], parent=10)  # forked by one
    process(tmp_path, 13, [*module, "/runs/b", "grader-0", "9"], parent=9)
    process(tmp_path, 14, [*module, run, "grader-0", "9"], parent=9, state="Z")
    process(tmp_path, 15, ["tail", "-f", run])
    found = [(victim.pid, victim.name, victim.kind) for victim in victims(Path(run), tmp_path)]
    assert found == [(11, "node rollout", "node"), (10, "parameter_server-0", "parameter_server")]
