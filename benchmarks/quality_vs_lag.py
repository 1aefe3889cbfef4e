"""What staleness costs: held-out reward of the quickstart, by how old the data may be and by objective.

    python benchmarks/quality_vs_lag.py [--json FILE] [--lags 0 1 4 8 16] [--seeds 0 1 2] [--steps 200] [--quick]

Every run is `headrace launch experiment=quickstart` with torch engines and begins with the same pre-trained checkpoint,
which is made once. Objectives: is_reinforce (weighs by pi/mu), decoupled_ppo (weighs by min(pi_old/mu, 5)), and ppo,
which has no correction for staleness: it takes old data for its own. The two with a clipped ratio take two updates a
batch. `lag`: mean over the trained tokens, in optimizer steps; what max_lag_versions allows must really be reached
(0.8 of it), which generators that are faster than training see to.

`--json FILE` is written after each run; runs that stand in it are not made again, so that the whole may be made in
several sittings. Beside it FILE.png. `vs lag 0`: the difference of the means over seeds and its 95 % interval (Welch);
"not worse" where the interval lies above -0.03. A run takes three to five minutes on two cores. --quick: 2 lags, 1
seed, 20 steps: whether it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

OBJECTIVES = {
    "is_reinforce": ("learner/objective=is_reinforce",),
    "decoupled_ppo": ("learner/objective=decoupled_ppo", "learner.num_minibatches=2"),
    "ppo (uncorrected)": ("learner/objective=ppo", "learner.num_minibatches=2"),
}
LAUNCH = [sys.executable, "-m", "headrace.launch.cli"]
TORCH = ("experiment=quickstart", "generator/engine=torch", "evaluator/engine=torch")
MARGIN = 0.03
REACHED = 0.8


def launch(place: Path, *overrides: str) -> Path:
    """One run, to its end; its folder."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*LAUNCH, "launch", *overrides], cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(overrides)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
    return (place / "runs" / "latest").resolve()


def make_start(place: Path) -> Path:
    """The folder of the pre-trained model with which every run begins."""
    start = place / "start"
    if not start.exists():
        print("pre-training the start", flush=True)
        run = launch(
            place,
            *TORCH,
            "training.max_steps=0",
            "evaluation.num_prompts=0",
            "learner.lr_schedule=constant",
            "run.name=start",
        )
        subprocess.run([*LAUNCH, "export", str(run), str(start)], check=True, capture_output=True)
    return start


def measure(place: Path, start: Path, *, objective: str, lag: int, seed: int, steps: int) -> dict[str, Any]:
    """One run as a row."""
    run = launch(
        place,
        *TORCH,
        "model=path",
        f"model.path={start}",
        "inference.context_tokens=512",
        "learner/pretrain=none",
        *OBJECTIVES[objective],
        f"staleness.max_lag_versions={lag}",
        "weights.every_steps=1",
        f"training.max_steps={steps}",
        f"evaluation.every_steps={steps}",
        "learner.checkpoint_every_steps=0",
        f"seed={seed}",
        "run.name=cell",
    )
    report = json.loads((run / "report.json").read_text())
    evaluation = report["evaluations"][-1]
    figures = report["lag_versions"]
    return {
        "objective": objective,
        "max_lag": lag,
        "seed": seed,
        "steps": steps,
        "start": report["evaluations"][0]["reward"],
        "reward": evaluation["reward"],
        "greedy": evaluation.get("greedy"),
        "lag_mean": figures["mean"],
        "lag_max": figures["max"],
        "ess": report["ess"]["token"],
        "dropped_over_age": report["ledger"]["dropped"]["over_age"],
        "wall_s": report["wall_s"],
    }


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By objective and lag: the mean over seeds, and against lag 0."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["objective"], row["max_lag"]), []).append(row)
    table = []
    for (objective, lag), found in sorted(cells.items()):
        rewards = [row["reward"] for row in found]
        zero = [row["reward"] for row in cells.get((objective, 0), [])]
        low, high = welch_interval(rewards, zero)
        table.append(
            {
                "objective": objective,
                "max_lag": lag,
                "seeds": len(found),
                "reward": mean(rewards),
                "sd": stdev(rewards) if len(rewards) > 1 else None,
                "lag_mean": mean(row["lag_mean"] for row in found),
                "lag_reached": lag == 0 or min(row["lag_mean"] for row in found) >= REACHED * lag,
                "vs_lag_0": mean(rewards) - mean(zero) if zero else None,
                "low": low,
                "high": high,
                "not_worse": None if low is None else lag == 0 or low > -MARGIN,
            }
        )
    return table


def welch_interval(ours: list[float], theirs: list[float]) -> tuple[float | None, float | None]:
    """95 % of the difference of two means, variances unknown and unequal (B. L. Welch 1947)."""
    from scipy.stats import t

    if min(len(ours), len(theirs)) < 2:
        return None, None
    a, b = stdev(ours) ** 2 / len(ours), stdev(theirs) ** 2 / len(theirs)
    difference = mean(ours) - mean(theirs)
    if a + b == 0:
        return difference, difference
    freedom = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1))
    half = float(t.ppf(0.975, freedom)) * math.sqrt(a + b)
    return difference - half, difference + half


def print_table(table: list[dict[str, Any]]) -> None:
    print(f"{'objective':<18} {'max lag':>7} {'lag':>6} {'seeds':>5} {'reward':>14} {'vs lag 0':>24}  not worse")
    for row in table:
        spread = "" if row["sd"] is None else f" ± {row['sd']:.3f}"
        against = "" if row["low"] is None else f"{row['vs_lag_0']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        word = {None: "", True: "yes", False: "NO"}[row["not_worse"]]
        reached = "" if row["lag_reached"] else "  (lag not reached)"
        print(
            f"{row['objective']:<18} {row['max_lag']:>7} {row['lag_mean']:>6.2f} {row['seeds']:>5} "
            f"{row['reward']:>7.3f}{spread:<7} {against:>24}  {word}{reached}"
        )


def draw(table: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for objective in OBJECTIVES:
        cells = [row for row in table if row["objective"] == objective]
        lags, rewards = [row["lag_mean"] for row in cells], [row["reward"] for row in cells]
        axes.errorbar(lags, rewards, yerr=[row["sd"] or 0.0 for row in cells], marker="o", capsize=3, label=objective)
    axes.set_xlabel("lag of the trained tokens, mean in optimizer steps")
    axes.set_ylabel("held-out reward, temperature 1")
    axes.set_title("What staleness costs")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("quality_vs_lag.json"))
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 4, 8, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--objectives", nargs="+", choices=list(OBJECTIVES), default=list(OBJECTIVES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    lags, seeds, steps = ([0, 2], [0], 20) if given.quick else (given.lags, given.seeds, given.steps)
    place = given.json.absolute().with_suffix(".runs")
    rows: list[dict[str, Any]] = json.loads(given.json.read_text())["rows"] if given.json.exists() else []
    done = {(row["objective"], row["max_lag"], row["seed"], row["steps"]) for row in rows}
    start = make_start(place)
    for seed in seeds:  # whole grids one after the other: a sitting that ends early has every cell
        for lag in lags:
            for objective in given.objectives:
                if (objective, lag, seed, steps) in done:
                    continue
                row = measure(place, start, objective=objective, lag=lag, seed=seed, steps=steps)
                rows.append(row)
                print(f"seed {seed}  lag {lag:>2} (reached {row['lag_mean']:.2f})  {objective:<18} "
                      f"{row['start']:.3f} -> {row['reward']:.3f}  {row['wall_s']:.0f} s", flush=True)  # fmt: skip
                given.json.write_text(json.dumps({"rows": rows, "table": compare(rows)}, indent=1) + "\n")
    table = compare([row for row in rows if row["steps"] == steps])
    print_table(table)
    draw(table, given.json.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
