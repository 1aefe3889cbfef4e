"""A run whose launcher is killed at random moments and resumed each time, and whether anything is lost or repeated.

    python benchmarks/resume.py [--kills 20] [--seed 0] [--json FILE] [--quick]

The run is `headrace launch experiment=smoke` with a checkpoint every 5 steps. Its launcher is killed (SIGKILL) with
everything below it at moments that the seed draws: one life in four within its first seconds (preflight, start), the
others up to a second after some steps more (steps, saves, publications, evaluations); `headrace launch resume=RUN` goes
on. At the end the ledger, the learner's record and the graders' shards are compared:
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_run.books import imbalances, read_books, retrained
from chaos_run.leftovers import kill, leftovers
from chaos_run.plan import Phase
from chaos_run.progress import read_position
from chaos_run.run import endings, run_id_of

MAX_STEPS = 180
OVERRIDES = (
    "experiment=smoke",
    f"training.max_steps={MAX_STEPS}",
    "evaluation.every_steps=10",
    "learner.checkpoint_every_steps=5",
    "learner.lr=1.0e-5",  # the pace stays: no policy that gives all members of a group one reward
)
LIMIT_S = 300.0
EARLY_S = 8.0
MOST_STEPS = 9
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Moment:
    """So long after the launch, or, where `steps` is given, after so many steps of this life."""

    after_s: float
    steps: int = 0


def draw_moment(rng: random.Random, *, first: bool) -> Moment:
    if first or rng.random() < 0.75:
        return Moment(rng.uniform(0.0, 1.0), rng.randint(1, MOST_STEPS))
    return Moment(rng.uniform(0.0, EARLY_S))


class ResumedRun:
    """Everything of it lies in `place`; sockets in `temp`."""

    def __init__(self, place: Path, temp: Path) -> None:
        self._place, self._temp = place, temp
        self.kills: list[dict[str, Any]] = []

    def live(self, moment: Moment | None) -> int | None:
        """One life, from a launch to its end or to its kill; the exit code, None where it was killed or too slow."""
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
                if moment is not None and self._wait_for(moment, launcher):
                    self._note(time.monotonic() - began_s)
                    return None
                return launcher.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if launcher.poll() is None:
                    launcher.kill()
                    launcher.wait()

    def _wait_for(self, moment: Moment, launcher: subprocess.Popen[bytes]) -> bool:
        """False where the run ended before, or did not come there."""
        give_up_s = time.monotonic() + LIMIT_S
        first = self._step()
        while moment.steps and time.monotonic() < give_up_s:
            first = min(first, self._step())  # what it rolls back does not count
            if self._step() >= first + moment.steps:
                break
            if launcher.poll() is not None:
                return False
            time.sleep(POLL_S)
        time.sleep(moment.after_s)
        return launcher.poll() is None and time.monotonic() < give_up_s

    def _step(self) -> int:
        position = None if self.folder is None else read_position(self.folder)
        return position.step if position is not None and position.phase is Phase.TRAINING else 0

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
            code = run.live(draw_moment(rng, first=not run.kills))
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
