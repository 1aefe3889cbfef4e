"""By how much does each part of the learner's mathematics differ from a slow twin that is written like its paper?

    python benchmarks/objectives.py [--quick] [--json FILE]

Random inputs in float64, twins one token at a time in plain Python (twins/); gradients by the complex step. Then, where
TRL is installed and publishes the same loss: against its code, on log-ratios below 20, at which ours are clamped.
Differences are relative where numbers are larger than 1. Ends with 1 where one is 1e-9 or more, 1e-6 from TRL. --quick:
fewer inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
from twins import drawing
from twins.comparing import (
    advantage_difference,
    aggregation_difference,
    correction_difference,
    credit_differences,
    kl_differences,
    objective_differences,
    penalty_difference,
)
from twins.rows import ADVANTAGES, AGGREGATIONS, CORRECTIONS, KL, OBJECTIVES, PENALTIES

BOUND, TRL_BOUND = 1e-9, 1e-6
NUM_DRAWS, NUM_DRAWS_QUICK = 2000, 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{NUM_DRAWS_QUICK} inputs in place of {NUM_DRAWS}")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    given = parser.parse_args()
    num_draws = NUM_DRAWS_QUICK if given.quick else NUM_DRAWS
    rows = measure(num_draws)
    version = trl_version()
    if version is None:
        print("TRL is not installed (pip install -e '.[peers]'): its losses are left out")
    else:
        rows += measure_trl(num_draws, version)
    print(f"{'kind':<12} {'part':<28} {'inputs':>7} {'value':>9} {'gradient':>9}")
    for row in rows:
        slope = "" if row["gradient"] is None else f"{row['gradient']:.1e}"
        print(f"{row['kind']:<12} {row['part']:<28} {row['inputs']:>7} {row['value']:>9.1e} {slope:>9}")
    if given.json:
        bounds = {"bound": BOUND, "trl_bound": TRL_BOUND, "trl": version}
        given.json.write_text(json.dumps({**bounds, "rows": rows}, indent=1) + "\n")
    return int(any(max(row["value"], row["gradient"] or 0.0) >= bound_of(row["kind"]) for row in rows))


def bound_of(kind: str) -> float:
    return TRL_BOUND if kind.startswith("TRL") else BOUND


def trl_version() -> str | None:
    try:
        return metadata.version("trl")
    except metadata.PackageNotFoundError:
        return None


def measure_trl(num_draws: int, version: str) -> list[dict]:
    from twins.trl_losses import COUNTERPARTS, trl_differences

    rows = []
    for part, counterpart in COUNTERPARTS.items():
        rng = np.random.default_rng(0)
        drawn = (drawing.sequences(rng, spreads=drawing.UNCLAMPED) for _ in range(num_draws))
        values, slopes = zip(*(trl_differences(counterpart, sequences) for sequences in drawn), strict=True)
        rows.append(_row(f"TRL {version}", part, num_draws, max(values), max(slopes)))
    return rows


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
    for part, (correction, correction_twin) in CORRECTIONS.items():
        rng = np.random.default_rng(0)
        gaps = [correction_difference(correction, correction_twin, drawing.sequences(rng)) for _ in range(num_draws)]
        rows.append(_row("correction", part, num_draws, max(gaps)))
    for part, (kl, kl_twin) in KL.items():
        rng = np.random.default_rng(0)
        found = [kl_differences(kl, kl_twin, drawing.sequences(rng)) for _ in range(num_draws)]
        values, slopes = zip(*found, strict=True)
        rows.append(_row("kl", part, num_draws, max(values), max(slopes)))
    rng = np.random.default_rng(0)
    credits = [credit_differences(*drawing.episode(rng)) for _ in range(num_draws)]
    rows += [_row("critic", part, num_draws, max(gap[part] for gap in credits)) for part in credits[0]]
    for part, (penalty, penalty_twin) in PENALTIES.items():
        rng = np.random.default_rng(0)
        gaps = [penalty_difference(penalty, penalty_twin, drawing.lengths(rng)) for _ in range(num_draws)]
        rows.append(_row("penalty", part, num_draws, max(gaps)))
    return rows


def _row(kind: str, part: str, inputs: int, value: float, gradient: float | None = None) -> dict:
    return {"kind": kind, "part": part, "inputs": inputs, "value": value, "gradient": gradient}


if __name__ == "__main__":
    sys.exit(main())
