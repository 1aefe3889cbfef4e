"""The smallest real run on two nodes: the agent of either is killed in the middle, and it still trains to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "headrace.launch.cli", "launch", "experiment=smoke", "topology=two_nodes_one_host"]


@pytest.mark.slow
@pytest.mark.parametrize("node", ["rollout", "training"])
def test_a_real_run_survives_the_loss_of_a_node(
    node: str, tmp_path: Path, until: Callable[..., None], agent_of: Callable[[Path, str], int | None]
) -> None:
    log = tmp_path / "console"
    with log.open("w") as output:
        launcher = subprocess.Popen([*COMMAND, "training.max_steps=40"], cwd=tmp_path, stdout=output, stderr=output)
    try:
        until(lambda: "evaluation of version 1 " in log.read_text(), 200, "training has begun")
        agent = agent_of(tmp_path, node)
        assert agent is not None
        os.kill(agent, signal.SIGKILL)
        assert launcher.wait(timeout=200) == 0, log.read_text()[-4000:]
    finally:
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()
    assert f"node {node} is lost" in log.read_text()
    run = (tmp_path / "runs" / "latest").resolve()
    report = json.loads((run / "report.json").read_text())
    assert report["steps"] == 40
    assert report["ledger"]["balanced"] is True
    assert agent_of(tmp_path, "rollout") is None
    assert agent_of(tmp_path, "training") is None
