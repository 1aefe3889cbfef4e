"""Two of the runs that `benchmarks/chaos.py` makes fifty of: one node and two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_two_runs_come_out_right(repository: Path, tmp_path: Path) -> None:
    result = tmp_path / "chaos.json"
    command = [sys.executable, str(repository / "benchmarks" / "chaos.py"), "--quick", "--json", str(result)]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "runs")], capture_output=True, text=True, timeout=680, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    figures = json.loads(result.read_text())
    assert figures["runs"] == figures["finished"] == figures["balanced"] == 2
    assert figures["kills"] == 10
    assert figures["retrained"] == figures["orphans"] == 0
