"""A whole run by `headrace launch`, bounded in steps and time: its curve, tokens a second, pause, memory of the GPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 570.0
STOP_S = 30.0
_PERIOD_S = 0.5

SMOLLM2_ON_ONE_GPU = (
    "experiment=smollm2",
    "topology=one_gpu",
    "weights=ipc",
    "learner.device=cuda",
    "learner.tokens_per_micro_batch=16384",
    "evaluator/engine=vllm",
    "+generator.engine.gpu_memory_utilization=0.3",
    "+evaluator.engine.gpu_memory_utilization=0.2",
    "+generator.engine.extra={enforce_eager:true}",  # compiling and capturing would be most of ten minutes
    "+evaluator.engine.extra={enforce_eager:true}",
    "training.max_steps=60",
    "training.max_wall_s=360",
    "evaluation.every_steps=20",
)
A_FEW_STEPS_ON_A_CPU = ("experiment=smoke", "weights=shm", "training.max_steps=4")


def check_recipe(overrides: Sequence[str], *, on_gpu: bool) -> dict[str, Any]:
    """Raises RuntimeError where the run fails or takes longer than LIMIT_S."""
    with tempfile.TemporaryDirectory(prefix="headrace-gpu-") as root:
        command = [sys.executable, "-m", "headrace.launch.cli", "launch", *overrides, f"run.root={root}"]
        log = Path(root) / "output"
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            peak_bytes = _follow(process, on_gpu=on_gpu)
        if process.returncode:
            tail = "\n".join(log.read_text().splitlines()[-30:])
            raise RuntimeError(f"{' '.join(command)} ended with code {process.returncode}:\n{tail}")
        report = json.loads((Path(root) / "latest" / "report.json").read_text())
        config = (Path(root) / "latest" / "config.yaml").read_text()
    return summary(report, overrides, "ipc" if "transport: ipc" in config else "shm", peak_bytes)


def _follow(process: subprocess.Popen[bytes] | subprocess.Popen[str], *, on_gpu: bool) -> int | None:
    """Until it ends: the most memory that was taken on the GPU, by everybody. Past LIMIT_S it is stopped."""
    until_s, peak_bytes = time.monotonic() + LIMIT_S, None
    try:
        while process.poll() is None:
            if on_gpu:
                peak_bytes = max(peak_bytes or 0, _taken_bytes())
            if time.monotonic() > until_s:
                raise RuntimeError(f"the recipe was not done within {LIMIT_S:g} s")
            time.sleep(_PERIOD_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return peak_bytes


def _taken_bytes() -> int:
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return int(total - free)


def summary(report: dict[str, Any], overrides: Sequence[str], transport: str, peak_bytes: int | None) -> dict[str, Any]:
    """Raises RuntimeError where the run trained nothing or served no new version."""
    if not report["steps"] or not report["weight_updates"]["count"]:
        raise RuntimeError(f"the run trained {report['steps']} steps, {report['weight_updates']} updates")
    return {
        "check": f"recipe ({' '.join(overrides[:1])}, weights={transport})",
        "steps": report["steps"],
        "wall_s": report["wall_s"],
        "tokens_per_s": report["tokens_per_s"],
        "updates": report["weight_updates"]["count"],
        "updates_failed": report["weight_updates"]["failed"],
        "pause_p50_s": report["update_pause_s"]["p50"],
        "pause_p95_s": report["update_pause_s"]["p95"],
        "peak_gpu_bytes": peak_bytes,
        "train_reward": [[step, mean] for step, mean, _ in report["train_reward"]],
        "eval_reward": [[version, mean] for version, mean, _ in report["eval_reward"]],
    }


def curve(row: dict[str, Any], width: int = 40) -> str:
    """The training reward, a bar for each step (every few of them where there are many)."""
    points = row["train_reward"]
    every = max(1, len(points) // 20)
    lines = [
        f"  step {step:4.0f}  {mean:6.3f}  {'#' * round(width * max(0.0, mean))}" for step, mean in points[::every]
    ]
    return "\n".join([*lines, f"  held out, by version: {row['eval_reward']}"])
