"""By how much does each part of the learner's mathematics differ from a slow twin that is written like its paper?

    python benchmarks/objectives.py [--quick] [--json FILE]

Random inputs in float64, twins one token at a time in plain Python (twins/); gradients by the complex step.
Differences are relative where numbers are larger than 1. Ends with 1 where one is 1e-9 or more. --quick: fewer inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from twins import drawing
from twins.comparing import advantage_difference, aggregation_difference, objective_differences
from twins.rows import ADVANTAGES, AGGREGATIONS, OBJECTIVES

BOUND = 1e-9
NUM_DRAWS, NUM_DRAWS_QUICK = 2000, 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{NUM_DRAWS_QUICK} inputs in place of {NUM_DRAWS}")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    given = parser.parse_args()
    rows = measure(NUM_DRAWS_QUICK if given.quick else NUM_DRAWS)
    print(f"{'kind':<12} {'part':<28} {'inputs':>7} {'value':>9} {'gradient':>9}")
    for row in rows:
        slope = "" if row["gradient"] is None else f"{row['gradient']:.1e}"
        print(f"{row['kind']:<12} {row['part']:<28} {row['inputs']:>7} {row['value']:>9.1e} {slope:>9}")
    if given.json:
        given.json.write_text(json.dumps({"bound": BOUND, "rows": rows}, indent=1) + "\n")
    return int(any(max(row["value"], row["gradient"] or 0.0) >= BOUND for row in rows))


def measure(num_draws: int) -> list[dict]:
    """One row a part: the largest difference over `num_draws` batches."""
    rows = []
    for part, (objective, twin) in OBJECTIVES.items():
        rng = np.random.default_rng(0)
        found = [objective_differences(objective, twin, drawing.sequences(rng)) for _ in range(num_draws)]
        values, slopes = zip(*found, strict=True)
        rows.append(_row("objective", part, num_draws, max(values), max(slopes)))
    for part, (make_rule, make_twin) in ADVANTAGES.items():
        rng, rule, advantage_twin = np.random.default_rng(0), make_rule(), make_twin()
        gaps = [advantage_difference(rule, advantage_twin, drawing.rewards(rng)) for _ in range(num_draws)]
        rows.append(_row("advantage", part, num_draws, max(gaps)))
    for part, (aggregation, aggregation_twin) in AGGREGATIONS.items():
        rng = np.random.default_rng(0)
        gaps = [aggregation_difference(aggregation, aggregation_twin, drawing.terms(rng)) for _ in range(num_draws)]
        rows.append(_row("aggregation", part, num_draws, max(gaps)))
    return rows


def _row(kind: str, part: str, inputs: int, value: float, gradient: float | None = None) -> dict:
    return {"kind": kind, "part": part, "inputs": inputs, "value": value, "gradient": gradient}


if __name__ == "__main__":
    sys.exit(main())
