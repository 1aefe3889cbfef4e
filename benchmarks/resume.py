"""A run whose launcher is killed at random moments and resumed each time, and whether anything is lost or repeated.

    python benchmarks/resume.py [--kills 20] [--seed 0] [--json FILE] [--quick]

The run is `headrace launch experiment=smoke` with a checkpoint every 5 steps. Its launcher is killed (SIGKILL) with
everything below it at moments that the seed draws: in the preflight, while it starts, trains, saves, evaluates;
`headrace launch resume=RUN` goes on. At the end the ledger, the learner's record and the graders' shards are compared:
no session is trained twice, every step is there once, each drop has a reason. Ends with 1 where that is not so.
--quick: 4 kills. About 15 seconds a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos_run.books import imbalances, read_books, retrained
from chaos_run.leftovers import kill, leftovers
from chaos_run.progress import read_position
from chaos_run.run import endings, run_id_of

MAX_STEPS = 120
OVERRIDES = (
    "experiment=smoke",
    f"training.max_steps={MAX_STEPS}",
    "evaluation.every_steps=10",
    "learner.checkpoint_every_steps=5",
    "learner.lr=1.0e-5",  # the pace stays: no policy that gives all members of a group one reward
)
LIMIT_S = 300.0
SHORTEST_S, LONGEST_S = 2.0, 20.0
"""of a life, from its launch to its kill"""


class ResumedRun:
    """Everything of it lies in `place`; sockets in `temp`."""

    def __init__(self, place: Path, temp: Path) -> None:
        self._place, self._temp = place, temp
        self.kills: list[dict[str, Any]] = []

    def live(self, kill_after_s: float | None) -> int | None:
        """One life, from a launch to its end or to its kill; the exit code, None where it was killed or took too long.
        A first life is not killed before there is a run to resume."""
        folder = self.folder
        given = OVERRIDES if folder is None else (f"resume={folder}",)
        began_s = time.monotonic()
        with (self._place / "console").open("a") as console:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "headrace.launch.cli", "launch", *given],
                cwd=self._place,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "TMPDIR": str(self._temp)},
                start_new_session=True,
            )
            try:
                while kill_after_s is not None and folder is None and self.folder is None and launcher.poll() is None:
                    time.sleep(0.05)
                return launcher.wait(timeout=LIMIT_S if kill_after_s is None else kill_after_s)
            except subprocess.TimeoutExpired:
                self._note(time.monotonic() - began_s)
                return None
            finally:
                if launcher.poll() is None:
                    launcher.kill()
                    launcher.wait()

    def _note(self, after_s: float) -> None:
        folder = self.folder
        assert folder is not None, "a life is killed once there is a run"
        position = read_position(folder)
        has_started = (folder / "provenance.json").is_file()
        moment = position.phase.name.lower() if has_started else "preflight"
        self.kills.append({"after_s": round(after_s, 1), "moment": moment, "step": position.step})
        print(f"{len(self.kills):>3}  killed after {after_s:>5.1f} s  {moment:<12} step {position.step}", flush=True)

    @property
    def folder(self) -> Path | None:
        """The run's folder, once its first launch came to its start."""
        found = (self._place / "runs").glob("[0-9]*/*")
        return next((path for path in found if any(path.glob("**/provenance.json"))), None)


def judge(run: ResumedRun, code: int | None) -> dict[str, Any]:
    """Counts, and what is wrong in words."""
    folder = run.folder
    problems = endings(code, folder)
    if folder is None:
        return {"problems": problems}
    books = read_books(folder)
    twice = retrained(books)
    problems += imbalances(books, MAX_STEPS) + ([f"{twice} sessions were trained twice"] if twice else [])
    return {
        "lives": 1 + len(list((folder / "lives").iterdir())),
        "steps": len(books.trained),
        "issued": books.issued,
        "trained": len(books.trained_ids),
        "repeated": twice,
        "dropped": dict(sorted(books.dropped().items())),
        "problems": problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="4 kills")
    given = parser.parse_args()
    num_kills = 4 if given.quick else given.kills
    if num_kills < 0:
        parser.error(f"--kills must be at least 0, got {num_kills}")
    rng = random.Random(given.seed)
    place, temp = Path(tempfile.mkdtemp(prefix="headrace-resume-")), Path(tempfile.mkdtemp(prefix="resume-"))
    run = ResumedRun(place, temp)
    result: dict[str, Any] = {}
    try:
        code: int | None = None
        while code is None and len(run.kills) < num_kills:
            code = run.live(rng.uniform(SHORTEST_S, LONGEST_S))
            left = leftovers(temp, run_id_of(run.folder)) if code is None else []
            result.setdefault("left_processes", []).extend(text for text in left if text.startswith("process"))
        code = run.live(None) if code is None else code
        result |= judge(run, code)
        result["problems"] += result.pop("left_processes", []) + leftovers(temp, run_id_of(run.folder))
        if len(run.kills) < num_kills:
            result["problems"].append(f"it ended after {len(run.kills)} of {num_kills} kills")
    finally:
        kill(temp)
        shutil.rmtree(temp, ignore_errors=True)
        result |= {"kills": run.kills, "seed": given.seed}
        if given.json:
            given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "kills"}, indent=1))
    if result["problems"]:
        print(f"the run's folder is {run.folder}", file=sys.stderr)
        return 1
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
