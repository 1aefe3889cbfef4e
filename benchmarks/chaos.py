"""Real runs that are struck by faults at random moments, and whether they come out right.

    python benchmarks/chaos.py [--runs 50] [--seed 0] [--json FILE] [--folder DIR] [--quick]

Each run is `headrace launch` with torch engines and a tiny model, on one node or, every other seed, on two. Five of its
processes are killed, of any kind of actor or node's agent, and in every other run one is stopped (SIGSTOP), at moments
that the seed draws: while it starts, pre-trains, trains, evaluates, ends, or recovers. Checked from outside: it
finishes; the ledger balances, by the dispatcher's, the learner's and the graders' own records; nothing is trained
twice; no process, socket or shared memory is left. Ends with 1 where a run does not; its folder stays then.
`--runs 1 --seed N` repeats a run's faults.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from chaos_run.run import ChaosRun, Verdict, totals


def line_of(verdict: Verdict) -> str:
    """A run's line of the table."""
    dropped = " ".join(f"{reason} {count}" for reason, count in sorted(verdict.dropped.items()))
    faults = ", ".join(map(str, verdict.struck))
    columns = f"{verdict.seed:>5} {verdict.topology:<18} {verdict.wall_s:>5.0f} s {verdict.restarts:>4} restarts"
    word = "NOT RIGHT" if verdict.problems else "right"
    problems = "".join(f"\n      {problem}" for problem in verdict.problems)
    return f"{columns} {verdict.trained:>5} trained  {word:<9}  dropped: {dropped}  faults: {faults}{problems}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others count on from it")
    parser.add_argument("--json", type=Path, help="where the figures are written, after each run")
    parser.add_argument("--folder", type=Path, help="where runs that come out wrong stay (default: a new folder)")
    parser.add_argument("--quick", action="store_true", help="two runs, one of each topology")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # the run under way ends with this process
        signal.signal(number, signal.default_int_handler)
    if given.runs < 1:
        parser.error(f"--runs must be at least 1, got {given.runs}")
    place = (given.folder or Path(tempfile.mkdtemp(prefix="headrace-chaos-"))).absolute()
    verdicts: list[Verdict] = []
    began_s = time.monotonic()
    for seed in range(given.seed, given.seed + (2 if given.quick else given.runs)):
        verdict = ChaosRun(seed, place).run()
        verdicts.append(verdict)
        print(line_of(verdict), flush=True)
        if not verdict.problems:
            shutil.rmtree(verdict.folder)
        failures = [asdict(v) for v in verdicts if v.problems]
        result = totals(verdicts) | {
            "seed": given.seed,
            "took_s": round(time.monotonic() - began_s),
            "failures": failures,
        }
        if given.json:
            given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "failures"}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
