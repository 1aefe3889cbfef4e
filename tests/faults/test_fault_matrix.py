"""benchmarks/fault_matrix.py in small: real processes, killed, stopped and late in a broadcast of weights; no hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_phase_of_each_fault(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "matrix.json"
    command = [sys.executable, str(repository / "benchmarks" / "fault_matrix.py"), "--quick", "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=580)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(file.read_text())
    assert len({(row["who"], row["fault"]) for row in found["rows"]}) == 12
    assert all(row["others_s"] <= row["whole_s"] <= 2 * found["limit_s"] for row in found["rows"])
