"""How much of what generators and learner could do at most does the system reach, by rates, tails and lag?

    python benchmarks/async_vs_sync.py [--json FILE] [--grid ratio=1,2 sigma=0,1.5 lag=rule,4] [--jobs 2] [--quick]

The real dispatcher, environments, graders, generators and parameter server with their messages, in virtual time;
engines and learner are simulated (async_run/): an engine decodes a token of each of its slots every 20 ms, a step takes
as long as its tokens. Grid: generation : training rate (0.5, 1, 2) x sigma of lognormal lengths (0, 1, 1.5; mean 32, at
most 1,024 tokens) x lag (the rule's, 0, 1, 4, 16) x weights in flight or taken between sessions; and mode=sync. Batches
of 128 sessions in groups of 8, 32 slots.

    bound   min(generation, training), tokens/s          sync   the best that a synchronous mode could do (bounds.py)
    rule    1 + E[slowest of a group] / step time, rounded up (algorithms.md)
    idle    of the measured time; the bottleneck is the slower side, both where rates match

Then two settings of their own. `long sessions`: 128 slots, so that a step is a quarter as long and the longest
sessions span more steps than the hard limit of 3 lags: what `over_age` costs then. `AReaL`: rates such that the
synchronous bound is 0.52 of the bound, as arXiv 2505.24298 measured at lag 0 (equal rates cannot give more than 0.50).

Ends with 1 where a cell at the rule's lag is below 0.95 or its bottleneck idle 5 % or more, sync is more than 10 %
below its bound, or AReaL's setting below 0.90 at lag 1 or 0.95 from 4 on. FILE.png is drawn beside FILE. --quick: one
ratio, two sigmas, the rule's lag. A cell takes half a minute of a core; rows that FILE holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from async_run.bounds import Machine, rule_lag, sync_bound
from async_run.cell import Cell, run_cell
from async_run.lengths import Lengths

TOKEN_S = 0.02
SLOTS, LONG_SLOTS = 32, 128
BATCH_SESSIONS, GROUP_SIZE = 128, 8
RATIOS, SIGMAS, LAGS = (0.5, 1.0, 2.0), (0.0, 1.0, 1.5), ("rule", "0", "1", "4", "16")
AREAL_SIGMA, AREAL_SYNC = 0.5, 0.52
LEAST, LEAST_LAG_1, MOST_IDLE, SYNC_WITHIN = 0.95, 0.90, 0.05, 0.10


def machine_of(ratio: float, slots: int = SLOTS) -> Machine:
    """ratio: generation over training."""
    return Machine(slots, TOKEN_S, training=slots / TOKEN_S / ratio)


def make_cell(setting: str, machine: Machine, sigma: float, lag: str, *, in_flight: bool = True, **more: Any) -> dict:
    """A cell with its name. lag: a number, "rule" or "sync"."""
    lengths = Lengths(sigma)
    rule = rule_lag(lengths, machine, batch_sessions=BATCH_SESSIONS, group_size=GROUP_SIZE)
    max_lag = {"rule": rule, "sync": 0}.get(lag) if not lag.isdigit() else int(lag)
    assert max_lag is not None, lag
    cell = Cell(lengths, machine, GROUP_SIZE, BATCH_SESSIONS, max_lag, in_flight, sync=lag == "sync", settings=more)
    return {
        "setting": setting,
        "ratio": round(machine.generation / machine.training, 3),
        "sigma": sigma,
        "lag": lag,
        "over_age": more.get("over_age", "drop"),
        "in_flight": in_flight,
        "cell": replace(cell, warm_up=16, steps=40),
    }


def grid(ratios: tuple[float, ...], sigmas: tuple[float, ...], lags: tuple[str, ...]) -> list[dict]:
    cells = []
    for ratio in ratios:
        for sigma in sigmas:
            machine = machine_of(ratio)
            cells += [make_cell("grid", machine, sigma, lag, in_flight=f) for f in (True, False) for lag in lags]
            cells.append(make_cell("grid", machine, sigma, "sync"))
    return cells


def long_sessions() -> list[dict]:
    machine = machine_of(1.0, LONG_SLOTS)
    return [make_cell("long sessions", machine, 1.5, "rule", over_age=policy) for policy in ("drop", "mask", "train")]


def areal() -> list[dict]:
    machine = areal_machine()
    return [make_cell("AReaL", machine, AREAL_SIGMA, lag) for lag in ("sync", "0", "1", "4", "16")]


def areal_machine() -> Machine:
    """Training as much faster than generation as gives the synchronous bound of 0.52."""
    lengths, low, high = Lengths(AREAL_SIGMA), 1.0, 10.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        machine = machine_of(1 / middle)
        if sync_bound(lengths, machine, BATCH_SESSIONS) / machine.bound < AREAL_SYNC:
            low = middle
        else:
            high = middle
    return machine_of(1 / low)


def measure(named: dict) -> dict[str, Any]:
    """A row."""
    cell: Cell = named["cell"]
    found = run_cell(cell)
    bound = cell.machine.bound
    best_sync = sync_bound(cell.lengths, cell.machine, cell.batch_sessions)
    return {
        **{name: value for name, value in named.items() if name != "cell"},
        "max_lag": cell.max_lag,
        "sync": cell.sync,
        "tokens_per_s": found["tokens_per_s"],
        "bound_tokens_per_s": bound,
        "sync_bound_tokens_per_s": best_sync,
        "of_bound": found["tokens_per_s"] / bound,
        "of_sync_bound": found["tokens_per_s"] / best_sync,
        "learner_idle": found["learner_idle"],
        "generator_idle": found["generator_idle"],
        "lag_mean": found["lag_mean"],
        "lag_max": found["lag_max"],
        "token_lag_mean": found["token_lag_mean"],
        "dropped": found["dropped"],
        "step_s": found["step_s"],
    }


def misses(row: dict[str, Any]) -> str:
    """What the row should have reached and did not, in words; "" where it did, or nothing is asked of it."""
    if row["sync"]:
        low = row["of_sync_bound"] < 1 - SYNC_WITHIN
        return f"below {1 - SYNC_WITHIN:.2f} of the synchronous bound" if low else ""
    least = {"grid": LEAST if row["lag"] == "rule" and row["in_flight"] else 0.0}.get(row["setting"], 0.0)
    if row["setting"] == "AReaL" and row["max_lag"]:
        least = LEAST_LAG_1 if row["max_lag"] == 1 else LEAST
    if row["of_bound"] < least:
        return f"below {least} of the bound"
    if row["setting"] == "grid" and least:
        idle = [row["generator_idle"]] if row["ratio"] <= 1 else []
        idle += [row["learner_idle"]] if row["ratio"] >= 1 else []
        return f"its bottleneck is idle {max(idle):.1%}" if max(idle) >= MOST_IDLE else ""
    return ""


COLUMNS = (
    f"{'setting':<13} {'gen:train':>9} {'sigma':>5} {'lag':>7} {'in flight':>9} {'over_age':>8} {'of bound':>8} "
    f"{'of sync':>7} {'learner idle':>12} {'gen. idle':>9} {'lag mean':>8} {'max':>4} {'dropped':>8}"
)


def line(row: dict[str, Any]) -> str:
    lag = "sync" if row["sync"] else f"{row['max_lag']}{'*' if row['lag'] == 'rule' else ''}"
    missed = misses(row)
    return (
        f"{row['setting']:<13} {row['ratio']:>9g} {row['sigma']:>5g} {lag:>7} "
        f"{'yes' if row['in_flight'] else 'no':>9} {row['over_age']:>8} {row['of_bound']:>8.3f} "
        f"{row['of_sync_bound']:>7.2f} {row['learner_idle']:>12.1%} {row['generator_idle']:>9.1%} "
        f"{row['lag_mean']:>8.2f} {row['lag_max']:>4} {sum(row['dropped'].values()):>8}"
        f"{'  MISSED: ' + missed if missed else ''}"
    )


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("setting", "ratio", "sigma", "lag", "over_age", "in_flight"))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel a tail: what is reached by lag, a line for each ratio of the rates."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cells = [row for row in rows if row["setting"] == "grid"]
    sigmas = sorted({row["sigma"] for row in cells})
    figure, panels = plt.subplots(1, max(1, len(sigmas)), figsize=(4.2 * max(1, len(sigmas)), 3.8), squeeze=False)
    ratios = sorted({row["ratio"] for row in cells})
    for panel, sigma in zip(panels[0], sigmas, strict=False):
        for number, ratio in enumerate(ratios):
            here = [row for row in cells if (row["sigma"], row["ratio"]) == (sigma, ratio)]
            for in_flight, style in ((True, "-o"), (False, ":x")):
                found = [row for row in here if row["in_flight"] is in_flight and not row["sync"]]
                points = sorted({(row["max_lag"] + 1, row["of_bound"]) for row in found})
                label = f"{ratio:g}" if in_flight else None
                panel.plot(*zip(*points, strict=True), style, label=label, color=f"C{number}") if points else None
            for row in (row for row in here if row["sync"]):
                panel.axhline(row["of_bound"], linewidth=0.6, linestyle="--", color=f"C{number}")
        panel.set(title=f"lengths: sigma {sigma:g}", xlabel="max_lag_versions + 1", xscale="log", ylim=(0, 1.05))
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("tokens/s, of the bound")
    panels[0][-1].legend(title="generation : training", fontsize=8)
    figure.suptitle("solid: weights in flight; dotted: between sessions; dashed: mode=sync", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def parse_grid(texts: list[str]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    given = dict(text.split("=", 1) for text in texts)
    unknown = set(given) - {"ratio", "sigma", "lag"}
    if unknown:
        raise ValueError(f"--grid has no {', '.join(sorted(unknown))}; it has ratio, sigma and lag")
    ratios = tuple(float(x) for x in given["ratio"].split(",")) if "ratio" in given else RATIOS
    sigmas = tuple(float(x) for x in given["sigma"].split(",")) if "sigma" in given else SIGMAS
    return ratios, sigmas, tuple(given["lag"].split(",")) if "lag" in given else LAGS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--grid", nargs="+", default=[], metavar="AXIS=VALUES")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time, each on a core")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    try:
        axes = parse_grid(given.grid)
    except ValueError as error:
        parser.error(str(error))
    if given.quick:
        axes = ((1.0,), (0.0, 1.0), ("rule",))
    cells = grid(*axes) + ([] if given.quick or given.grid else [*areal(), *long_sessions()])
    rows: list[dict[str, Any]] = []
    if given.json and given.json.exists():
        rows = json.loads(given.json.read_text())["rows"]
    done = {key(row) for row in rows}
    print(COLUMNS, flush=True)
    for row in rows:
        print(line(row))
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(measure, cell) for cell in cells if key(cell) not in done]):
            rows.append(future.result())
            print(line(rows[-1]), flush=True)
            if given.json:
                given.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    if given.json:
        draw(rows, given.json.with_suffix(".png"))
    missed = [row for row in rows if misses(row)]
    print(f"{len(rows)} cells, {len(missed)} missed; * the rule's lag")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
