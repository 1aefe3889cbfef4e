"""Puts report.json together and writes it, with report.html, into the run folder. docs/report.md describes its keys."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace.launch.report import sections
from headrace.launch.report.membership import membership
from headrace.launch.report.run_files import RunFiles
from headrace.launch.report.stalls import stalls
from headrace.launch.report.summaries import histogram_summary


def build_report(run_dir: Path | str) -> dict[str, Any]:
    """Everything that the folder knows about the run, as JSON values. Works on a run that was killed half-way, and on
    damaged files, which it names: what is not known is null, an empty list, or a count of 0."""
    run = RunFiles(Path(run_dir))
    entries = sections.evaluations(run)
    lags = sections.lag_histogram(run)
    utilisation = sections.utilisation(run)
    rates = sections.throughput(run)
    steps = run.stream("train")
    wall_s = run.outcome.get("wall_s")
    return {
        "run": run.folder.name,
        "status": run.outcome.get("ending", "unfinished"),
        "reason": run.outcome.get("reason"),
        "mode": run.config.get("mode"),
        "wall_s": wall_s if isinstance(wall_s, int | float) else run.last_time_s or None,
        "steps": int(steps[-1].step) if steps else 0,
        "eval_reward": sections.eval_curve(entries, "reward"),
        "eval_reward_greedy": sections.eval_curve(entries, "greedy"),
        "eval_pass_at_8": sections.eval_curve(entries, "pass_at_8"),
        "eval_pass_at": sections.pass_curves(entries),
        "eval_missing": sections.eval_missing(entries),
        "evaluations": entries,
        "train_reward": sections.train_reward(run),
        "train_missing": sections.train_missing(run),
        "weight_updates": sections.weight_updates(run),
        "relayed_weights": sections.relayed_weights(run),
        "update_pause_s": sections.update_seconds(run, "pause_s"),
        "update_load_s": sections.update_seconds(run, "load_s"),
        "lag_versions": histogram_summary(lags),
        "lag_sessions": sections.session_lags(run),
        "lag_histogram": {str(lag): tokens for lag, tokens in lags.items()},
        "utilisation": utilisation,
        "busiest": max(utilisation, key=lambda role: float(utilisation[role]["busy"]), default=None),
        "tokens_per_s": rates["tokens_per_s"],
        "sessions_per_s": rates["sessions_per_s"],
        "throughput": rates,
        "logprob_gap": sections.logprob_gap(run),
        "ess": sections.ess(run),
        "ledger": sections.ledger(run),
        "stalls": stalls(run.stalls),
        "membership": membership(run.membership),
        "provenance": run.provenance,
        "unreadable_lines": run.num_unreadable_lines,
        "damaged_files": run.damaged,
    }


def write_report(run_dir: Path | str) -> dict[str, Any]:
    """Write report.json, then report.html, each at once. Returns the report."""
    from headrace.launch.report.page import render_page  # matplotlib: only where pictures are made

    folder = Path(run_dir)
    report = build_report(folder)
    _replace(folder / "report.json", json.dumps(report, indent=1, allow_nan=False) + "\n")
    _replace(folder / "report.html", render_page(report, RunFiles(folder)))
    return report


def _replace(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}")
    staged.write_text(text, encoding="utf-8")
    os.replace(staged, path)
