"""A run at full rate for many minutes: does the memory of any process grow?

    python benchmarks/soak.py [--minutes 20] [--quick] [--json FILE] [override …]

Starts `headrace launch experiment=smoke` without a last step, reads the resident memory of each of its processes every
five seconds, and ends the run with SIGINT. After the first two minutes no process may be above or below its median by
more than 5 %; growth is the slope of a line through the samples. `--quick`: three minutes, of which one is warm-up.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVERY_S = 5.0
ALLOWED = 0.05
OVERRIDES = [
    "experiment=smoke",
    "training.max_steps=1000000",
    "evaluation.every_steps=200",
    "learner.checkpoint_every_steps=200",
    "learner.lr_schedule=constant",
]


def processes_of(launcher: int) -> dict[str, int]:
    """Name of each process of the run (its command line ends with it) and its id."""
    found = {"launcher": launcher}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "headrace.launch.process" in words and str(launcher) in words:
            found[words[words.index("headrace.launch.process") + 2]] = int(folder.name)
    return found


def resident_bytes(pid: int) -> int | None:
    try:
        pages = (Path("/proc") / str(pid) / "statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * 4096


def judge(samples: list[tuple[float, int]], warm_up_s: float) -> dict[str, float | bool]:
    """Samples (seconds, bytes) of one process. `spread`: largest distance from the median, as a share of it."""
    late = [(at_s, size) for at_s, size in samples if at_s >= warm_up_s]
    median = statistics.median(size for _, size in late)
    spread = max(abs(size - median) for _, size in late) / median
    slope = statistics.linear_regression(*zip(*late, strict=True)).slope if len(late) > 2 else 0.0
    return {
        "median_MB": median / 1e6,
        "spread": spread,
        "growth_MB_per_hour": slope * 3600 / 1e6,
        "flat": spread <= ALLOWED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    minutes, warm_up_s = (3.0, 60.0) if arguments.quick else (arguments.minutes, 120.0)
    with tempfile.TemporaryDirectory() as root:
        log = Path(root) / "launch.log"
        command = [sys.executable, "-m", "headrace.launch.cli", "launch", f"run.root={root}/runs", *OVERRIDES]
        with log.open("wb") as output:
            launcher = subprocess.Popen([*command, *arguments.overrides], stdout=output, stderr=subprocess.STDOUT)
        try:
            samples = follow(launcher, minutes * 60, log)
        finally:
            launcher.send_signal(signal.SIGINT)
            launcher.wait(60)
        sessions_per_s = rate_of(Path(root) / "runs" / "latest")
    found = {name: judge(taken, warm_up_s) for name, taken in sorted(samples.items())}
    print(f"\n{'process':24}{'median MB':>12}{'spread':>10}{'MB/hour':>10}")
    for name, one in found.items():
        verdict = "" if one["flat"] else "  NOT FLAT"
        print(f"{name:24}{one['median_MB']:>12.0f}{one['spread']:>10.1%}{one['growth_MB_per_hour']:>10.1f}{verdict}")
    print(f"{minutes:g} minutes, {sessions_per_s} sessions/s")
    if arguments.json:
        document = {"minutes": minutes, "warm_up_s": warm_up_s, "sessions_per_s": sessions_per_s, "processes": found}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    sys.exit(0 if all(one["flat"] for one in found.values()) else 1)


def follow(launcher: subprocess.Popen[bytes], seconds: float, log: Path) -> dict[str, list[tuple[float, int]]]:
    """Samples by process, from the moment in which training makes its first step."""
    samples: dict[str, list[tuple[float, int]]] = {}
    began_s: float | None = None
    while began_s is None or time.monotonic() - began_s < seconds:
        if launcher.poll() is not None:
            raise SystemExit(f"the run ended by itself:\n{log.read_text()[-3000:]}")
        time.sleep(EVERY_S)
        if began_s is None:
            if " step " not in log.read_text():
                continue
            began_s = time.monotonic()
        at_s = time.monotonic() - began_s
        for name, pid in processes_of(launcher.pid).items():
            size = resident_bytes(pid)
            if size is not None:
                samples.setdefault(name, []).append((at_s, size))
        print(f"\r{at_s:5.0f} of {seconds:.0f} s, {len(samples)} processes", end="", file=sys.stderr, flush=True)
    return samples


def rate_of(run: Path) -> float | None:
    try:
        report = json.loads((run / "report.json").read_text())
    except (OSError, ValueError):
        return None
    return round(float(report["sessions_per_s"]), 1)


if __name__ == "__main__":
    main()
