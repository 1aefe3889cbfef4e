"""Runs tests upon mutants in a copy of the tree: heavy packages are imported once, each mutant has a fork.

    python worker.py TREE        lines of {path, code, tests, timeout_s} → lines of {outcome, seconds}

outcome: "survived" (all tests passed), "killed", "timeout". The copy's packages come first on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import hypothesis
import numpy as np  # noqa: F401
import pytest
import torch

_POLL_S = 0.02


def run(tree: Path, path: str, code: str, tests: list[str], timeout_s: float) -> str:
    file = tree / path
    original = file.read_text(encoding="utf-8")
    file.write_text(code, encoding="utf-8")
    try:
        return _outcome(_start(tree, tests), time.monotonic() + timeout_s)
    finally:
        file.write_text(original, encoding="utf-8")


def _start(tree: Path, tests: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.setsid()
        os.chdir(tree)
        log = os.open(tree / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutation", "--hypothesis-seed=0"]
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)


def _outcome(pid: int, deadline_s: float) -> str:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return "survived" if status == 0 else "killed"
        if time.monotonic() > deadline_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "timeout"
        time.sleep(_POLL_S)


def main() -> None:
    tree = Path(sys.argv[1])
    sys.dont_write_bytecode = True  # a file is written twice within a second
    torch.set_num_threads(1)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a failure need not be made small
    hypothesis.settings.register_profile("mutation", phases=phases, deadline=None, database=None)
    for line in sys.stdin:
        started_s = time.monotonic()
        outcome = run(tree, **json.loads(line))
        print(json.dumps({"outcome": outcome, "seconds": time.monotonic() - started_s}), flush=True)


if __name__ == "__main__":
    main()
