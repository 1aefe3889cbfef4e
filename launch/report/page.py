"""report.html: one self-contained file, pictures inside as SVG. No script, nothing fetched."""

from __future__ import annotations

import io
from importlib.resources import files
from typing import Any

import jinja2
from matplotlib import rc_context
from matplotlib.figure import Figure

from headrace.launch.report import pictures
from headrace.launch.report.evaluation_table import evaluation_rows
from headrace.launch.report.example_sessions import example_sessions
from headrace.launch.report.run_files import RunFiles
from headrace.launch.report.text import missing, number


def figures(report: dict[str, Any], run: RunFiles) -> list[tuple[str, str, Figure]]:
    """(title, what it shows, figure) of every picture for which the run has data."""
    train = run.stream("train")
    drawn = [
        (
            "Held-out reward",
            "By the optimizer steps in the evaluated version. Bars: one standard error.",
            pictures.held_out_reward(report["evaluations"]),
        ),
        (
            "Training reward",
            "Sessions that were trained; dropped groups are not among them.",
            pictures.train_reward(report["train_reward"]),
        ),
        ("Where the time went", "Shares of wall time by role.", pictures.utilisation(report["utilisation"])),
        (
            "Lag",
            "Optimizer steps between the weights that sampled a token and those that were trained.",
            pictures.lag_histogram(report["lag_histogram"]),
        ),
        (
            "Weight updates",
            "How long each update held a generator's decoding.",
            pictures.update_pauses(run.stream("weights")),
        ),
        ("Effective sample size", "1 where all importance weights are equal.", pictures.effective_sample_size(train)),
        ("Open sessions", "Training sessions under way, by state.", pictures.open_sessions(run.stream("dispatcher"))),
        (
            "Pre-training",
            "Cross-entropy.",
            pictures.supervised_loss(run.stream("pretrain"), "pre-training step"),
        ),
        ("Fine-tuning", "Cross-entropy.", pictures.supervised_loss(run.stream("sft"), "fine-tuning step")),
    ]
    return [(title, caption, figure) for title, caption, figure in drawn if figure is not None]


def to_svg(figure: Figure) -> str:
    """The svg element. Text stays text, and the same figure gives the same bytes."""
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "headrace", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def render_page(report: dict[str, Any], run: RunFiles) -> str:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["number"] = number
    source = files("headrace.launch.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    drawn = [
        {"title": title, "caption": caption, "svg": to_svg(figure)} for title, caption, figure in figures(report, run)
    ]
    return environment.from_string(source).render(
        report=report,
        figures=drawn,
        headline=headline(report),
        evaluation=evaluation_rows(report["evaluations"][-1]) if report["evaluations"] else [],
        examples=example_sessions(run),
    )


def headline(report: dict[str, Any]) -> list[dict[str, str]]:
    """The figures on top of the page: label, value, and what stands under it."""

    def change(points: list[list[float]]) -> str:
        return f"{points[0][1]:.3f} → {points[-1][1]:.3f}" if points else "–"

    def count(points: list[list[float]]) -> str:
        return f"n = {points[-1][2]:.0f} at the end" if points else "not evaluated"

    pause, lag, updates = report["update_pause_s"]["p95"], report["lag_versions"], report["weight_updates"]
    return [
        {
            "label": "held-out, greedy",
            "value": change(report["eval_reward_greedy"]),
            "note": count(report["eval_reward_greedy"]),
        },
        {
            "label": "held-out, temperature 1",
            "value": change(report["eval_reward"]),
            "note": count(report["eval_reward"]),
        },
        {
            "label": "sessions without reward",
            "value": _missing(report),
            "note": missing(report),
        },
        {
            "label": "wall time",
            "value": f"{number(report['wall_s'], 0)} s",
            "note": f"{report['steps']} optimizer steps",
        },
        {
            "label": "sessions/s",
            "value": number(report["sessions_per_s"], 1),
            "note": f"{number(report['tokens_per_s'], 0)} tokens/s",
        },
        {
            "label": "updates in flight",
            "value": str(updates["with_requests_running"]),
            "note": f"of {updates['count']}, {updates['failed']} failed",
        },
        {
            "label": "update pause p95",
            "value": f"{number(None if pause is None else 1000 * pause, 0)} ms",
            "note": "decoding held",
        },
        {
            "label": "lag, mean",
            "value": number(lag["mean"], 2),
            "note": f"p95 {number(lag['p95'], 0)}, max {number(lag['max'], 0)}",
        },
        {
            "label": "ledger",
            "value": "balanced" if report["ledger"]["balanced"] else "NOT balanced",
            "note": f"{report['ledger']['issued']} sessions",
        },
    ]


def _missing(report: dict[str, Any]) -> str:
    held_out = sum(point[1] for point in report["eval_missing"])
    return f"{held_out + report['train_missing']['missing']}"
