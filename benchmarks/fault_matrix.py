"""Each fault of a collective broadcast in each phase: what becomes of it, and how long until all is in order again.

    python benchmarks/fault_matrix.py [--runs 200] [--seed 0] [--quick] [--json FILE] [--only WORDS]

Real processes over the shared-memory communicator: the real parameter server, a learner that only publishes, three
generators whose engines hold weights and no model (broadcast_faults/). `others s`: from the publication until the
healthy members serve that version or a newer one. `all s`: until everybody serves the newest, the culprit, restarted or
rejoined, too. Deadlines: gather 1 s, join, broadcast and commit 2 s. Ends with 1 where anything hung, or an engine
held what it must not. Without --runs: each cell once; --quick: one phase of each fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from broadcast_faults.scenario import CELLS, LIMIT_S, Result, play

_BAD = ("HANG", "WRONG")


def cells_of(given: argparse.Namespace) -> list[tuple[str, str, str]]:
    cells = [(who, fault, phase) for who, fault, phases in CELLS for phase in phases]
    if given.only:
        cells = [cell for cell in cells if all(word in cell for word in given.only.split())]
    if given.quick:
        chance = random.Random(given.seed)
        kinds = sorted({cell[:2] for cell in cells})
        cells = [chance.choice([cell for cell in cells if cell[:2] == kind]) for kind in kinds]
    runs = given.runs or len(cells)
    return [cells[number % len(cells)] for number in range(runs)]


def line_of(results: list[Result]) -> str:
    head = results[0]
    outcomes = sorted({result.outcome for result in results})
    others, whole = ([getattr(r, name) for r in results] for name in ("others_s", "whole_s"))
    figures = f"{statistics.median(others):6.1f} {max(others):6.1f} {statistics.median(whole):6.1f} {max(whole):6.1f}"
    return f"{head.who:<17} {head.fault:<17} {head.phase:<7} {len(results):>4} {figures}  {' | '.join(outcomes)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="in turn over the cells (default: each cell once)")
    parser.add_argument("--seed", type=int, default=0, help="who is struck, and whether the group is a new one")
    parser.add_argument("--quick", action="store_true", help="one phase of each fault")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    parser.add_argument("--only", help="cells with these words, such as 'learner join'")
    given = parser.parse_args()
    found: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    cells = cells_of(given)
    for number, cell in enumerate(cells):
        result = asyncio.run(play(*cell, seed=given.seed * 100_003 + number))
        found[cell].append(result)
        if result.outcome.startswith(_BAD):
            print(f"{' '.join(cell)} seed {result.seed}: {result.outcome}", flush=True)
        elif sys.stderr.isatty():
            print(f"{number + 1}/{len(cells)}", end="\r", file=sys.stderr, flush=True)
    results = [result for of_cell in found.values() for result in of_cell]
    bad = [result for result in results if result.outcome.startswith(_BAD)]
    print(f"{'who':<17} {'fault':<17} {'phase':<7} {'runs':>4} others s (max)  all s (max)  outcome")
    for of_cell in found.values():
        print(line_of(of_cell))
    print(f"{len(results)} runs, {len(bad)} hung or wrong; limit {LIMIT_S:.0f} s")
    if given.json:
        rows = [asdict(result) for result in results]
        given.json.write_text(json.dumps({"limit_s": LIMIT_S, "rows": rows}, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
