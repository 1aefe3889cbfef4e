"""Would the tests of the learner's mathematics notice an error? Each small change to it must fail one.

    python benchmarks/mutation.py [--quick] [--only WORDS] [--workers N] [--json FILE]

Mutants of every loss and advantage file are made by Cosmic Ray (an operator, a number, a comparison replaced, …), each
in a copy of the tree upon which that file's tests run. Not counted: annotations, flags of decorators, texts of errors.
Ends with 1 below 90 % killed. --quick: every tenth mutant. --only: files whose path holds this. --json: the score of
each file, and what survived, to be read.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutation_run.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[1]
LEARNER, TESTS = Path("actors/learner"), Path("tests/actors/learner")
TESTS_OF = {
    "objectives": ["objectives"],
    "advantages": ["advantages", "test_credit.py"],
    "aggregation": ["aggregation"],
    "corrections": ["corrections"],
    "kl": ["kl"],
    "penalties": ["penalties"],
    "credit.py": ["test_credit.py", "advantages"],
    "value_head.py": ["test_value_head.py"],
}
BOUND = 0.9


@dataclass(frozen=True, slots=True)
class Job:
    path: str
    tests: list[str]
    mutant: Mutant


def files() -> Iterator[tuple[str, list[str]]]:
    for part, names in TESTS_OF.items():
        found = ROOT / LEARNER / part
        tests = [str(TESTS / name) for name in names]
        for path in [found] if found.is_file() else sorted(found.glob("*.py")):
            yield str(path.relative_to(ROOT)), tests


class Worker:
    """A process with a copy of the tree."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "headrace"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.tree / name)
        script = str(Path(__file__).parent / "mutation_run" / "worker.py")
        environ = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, script, str(self.tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def run(self, path: str, code: str, tests: list[str], timeout_s: float) -> tuple[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            json.dumps({"path": path, "code": code, "tests": tests, "timeout_s": timeout_s}) + "\n"
        )
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["outcome"], answer["seconds"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    jobs = [
        Job(path, tests, mutant)
        for path, tests in files()
        if given.only in path
        for mutant in mutants_of((ROOT / path).read_text(encoding="utf-8"))
    ][:: 10 if given.quick else 1]
    print(f"{len(jobs)} mutants of {len({job.path for job in jobs})} files, {given.workers} at a time")
    with tempfile.TemporaryDirectory(prefix="headrace-mutation-") as folder:
        outcomes = run_all(jobs, Path(folder), given.workers)
    return report(jobs, outcomes, given.json)


def run_all(jobs: list[Job], folder: Path, num_workers: int) -> list[str]:
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    workers = [Worker(folder / str(i)) for i in range(num_workers)]
    for worker in workers:
        free.put(worker)
    whole_s: dict[tuple[str, ...], float] = {}
    lock, done, started_s = threading.Lock(), 0, time.monotonic()

    def with_worker(path: str, code: str, tests: list[str], timeout_s: float) -> tuple[str, float]:
        worker = free.get()
        try:
            return worker.run(path, code, tests, timeout_s)
        finally:
            free.put(worker)

    def baseline(job: Job) -> None:
        outcome, seconds = with_worker(job.path, (ROOT / job.path).read_text(encoding="utf-8"), job.tests, 600.0)
        if outcome != "survived":
            raise SystemExit(f"{' '.join(job.tests)}: {outcome} without any mutant")
        whole_s[tuple(job.tests)] = seconds

    def one(job: Job) -> str:
        nonlocal done
        outcome, _ = with_worker(job.path, job.mutant.code, job.tests, 10.0 + 4 * whole_s[tuple(job.tests)])
        with lock:
            done += 1
            if done % 25 == 0:
                left_s = (time.monotonic() - started_s) / done * (len(jobs) - done)
                print(f"  {done}/{len(jobs)}, about {left_s / 60:.0f} min left", file=sys.stderr, flush=True)
        return outcome

    with ThreadPoolExecutor(num_workers) as pool:
        list(pool.map(baseline, {tuple(job.tests): job for job in jobs}.values()))
        outcomes = list(pool.map(one, jobs))
    for worker in workers:
        worker.close()
    return outcomes


def report(jobs: list[Job], outcomes: list[str], path: Path | None) -> int:
    rows = []
    for name in dict.fromkeys(job.path for job in jobs):
        of_file = [(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True) if job.path == name]
        survived = [
            {
                "line": job.mutant.line,
                "operator": job.mutant.operator,
                "before": job.mutant.before,
                "after": job.mutant.after,
            }
            for job, outcome in of_file
            if outcome == "survived"
        ]
        rows.append(
            {"file": name, "mutants": len(of_file), "killed": len(of_file) - len(survived), "survived": survived}
        )
    total, killed = len(jobs), sum(row["killed"] for row in rows)
    print(f"{'file':<52} {'mutants':>8} {'killed':>7} {'score':>7}")
    for row in rows:
        print(f"{row['file']:<52} {row['mutants']:>8} {row['killed']:>7} {row['killed'] / row['mutants']:>7.1%}")
    print(f"{'all':<52} {total:>8} {killed:>7} {killed / max(1, total):>7.1%}  (at least {BOUND:.0%})")
    if path is not None:
        path.write_text(json.dumps({"bound": BOUND, "score": killed / max(1, total), "rows": rows}, indent=1) + "\n")
    return int(killed < BOUND * total)


if __name__ == "__main__":
    sys.exit(main())
