"""The pictures of a report, one function each: data in, a matplotlib Figure out, or None where there is nothing to
draw.

Figures are made without pyplot: no global state, no display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headrace.launch.report.run_files import MetricsRecord

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, ORANGE, GREEN, RED, PURPLE, TEAL = "#2563a8", "#d9822b", "#2f8f5b", "#b83a3a", "#7a5195", "#3b9ab2"
ROLE_COLOURS = {
    "generator": ORANGE, "evaluator": "#e8b27a", "environment": GREEN, "grader": PURPLE, "learner": BLUE,
    "dispatcher": TEAL, "parameter_server": RED, "monitor": MUTED,
}  # fmt: skip
IDLE, BUSY = "#eef1f4", "#34495e"
_SIZE_INCHES = (5.6, 3.0)


def held_out_reward(entries: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Mean reward of held-out prompts by optimizer step: samples, greedy, pass@k of the largest k; bars are one
    standard error."""
    if not any({"greedy", "reward"} & entry.keys() for entry in entries):
        return None  # nothing was evaluated, or no session of an evaluation has a reward
    ks = [int(k) for e in entries for name in e if (k := name.removeprefix("pass_at_")).isdecimal()]
    most = max(ks, default=1)
    figure, axes = _canvas("optimizer steps in the version", "held-out reward")
    for name, label, colour in (
        ("greedy", "greedy", BLUE),
        ("reward", "sampled", ORANGE),
        (f"pass_at_{most}", f"pass@{most}", GREEN),
    ):
        points = [(e["step"], e[name], e.get(f"{name}_stderr", 0.0)) for e in entries if name in e]
        if points:
            x, y, error = (list(column) for column in zip(*points, strict=True))
            axes.errorbar(
                x, y, yerr=error, label=label, color=colour, linewidth=1.8, marker="o", markersize=4, capsize=2.5
            )
    _unit_interval(axes)
    _legend(axes, "lower right")
    return figure


def train_reward(points: Sequence[Sequence[float]]) -> Figure | None:
    """Mean reward of the sessions trained in each step, and its running mean."""
    if not points:
        return None
    figure, axes = _canvas("optimizer step", "reward of trained sessions")
    x, y = [p[0] for p in points], [p[1] for p in points]
    axes.plot(x, y, color=ORANGE, alpha=0.3, linewidth=0.8, label="each step")
    window = max(1, min(25, len(y) // 5))
    axes.plot(x[window - 1 :], _running_mean(y, window), color=ORANGE, linewidth=2, label=f"mean of {window}")
    _unit_interval(axes)
    _legend(axes, "lower right")
    return figure


def lag_histogram(counts: Mapping[str, int]) -> Figure | None:
    """Share of the trained tokens by lag."""
    total = sum(counts.values())
    if not total:
        return None
    figure, axes = _canvas("lag of a trained token (optimizer steps)", "share of tokens")
    lags = [int(lag) for lag in counts]
    shares = [count / total for count in counts.values()]
    bars = axes.bar(lags, shares, color=BLUE, width=0.8)
    if len(lags) <= 12:
        axes.bar_label(bars, labels=[f"{100 * share:.0f}%" for share in shares], color=MUTED, fontsize=8, padding=2)
        axes.set_xticks(range(min(lags), max(lags) + 1))
    axes.set_ylim(0, 1.12 * max(shares))
    return figure


def utilisation(roles: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """One bar a role: busy, blocked on whom, idle."""
    if not roles:
        return None
    figure, axes = _canvas("share of wall time", "", height_inches=1.1 + 0.34 * len(roles))
    names = list(roles)[::-1]
    left = np.zeros(len(names))
    peers = sorted({peer for shares in roles.values() for peer, share in shares["blocked"].items() if share >= 0.005})
    layers: list[tuple[str, str, str, list[float]]] = [("busy", BUSY, "", [roles[n]["busy"] for n in names])]
    for peer in peers:
        colour = ROLE_COLOURS.get(peer, MUTED)
        layers.append((f"blocked on {peer}", colour, "///", [roles[n]["blocked"].get(peer, 0.0) for n in names]))
    layers.append(("idle", IDLE, "", [roles[n]["idle"] for n in names]))
    for label, colour, hatch, widths in layers:
        edge = "white" if hatch else colour
        axes.barh(
            names, widths, left=left, label=label, color=colour, hatch=hatch, edgecolor=edge, linewidth=0, height=0.7
        )
        left = left + np.asarray(widths)
    axes.set_xlim(0, 1)
    axes.grid(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, fontsize=8)
    return figure


def update_pauses(records: Sequence[MetricsRecord]) -> Figure | None:
    """The pause of each weight update of each generator, and the load inside it."""
    commits = [record for record in records if "pause_s" in record.values]
    if not commits:
        return None
    figure, axes = _canvas("version", "milliseconds")
    versions = [record.step for record in commits]
    for name, label, colour in (("pause_s", "pause", RED), ("load_s", "of it: load", MUTED)):
        axes.scatter(
            versions,
            [1000 * r.values.get(name, 0.0) for r in commits],
            s=9,
            color=colour,
            label=label,
            alpha=0.8,
            linewidths=0,
        )
    axes.set_ylim(0, 1.25 * max(1000 * record.values["pause_s"] for record in commits) or 1.0)
    _legend(axes, "upper right", columns=2)
    return figure


def effective_sample_size(records: Sequence[MetricsRecord]) -> Figure | None:
    """ESS / N of the importance weights in each step."""
    figure, axes = _canvas("optimizer step", "effective sample size / N")
    drawn = False
    for name, label, colour in (("ess/token", "by token", BLUE), ("ess/sequence", "by sequence", TEAL)):
        points = [(record.step, record.values[name]) for record in records if name in record.values]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.2, label=label)
            drawn = True
    if not drawn:
        return None
    _unit_interval(axes)
    _legend(axes, "lower left")
    return figure


def open_sessions(records: Sequence[MetricsRecord]) -> Figure | None:
    """Training sessions that are under way, by state, over the time of the run."""
    if not records:
        return None
    figure, axes = _canvas("seconds", "open sessions")
    states = (("running", GREEN), ("grading", PURPLE), ("ready", ORANGE), ("training", BLUE))
    layers = [[record.values.get(state, 0.0) for record in records] for state, _ in states]
    colours = [colour for _, colour in states]
    times = [record.time_s for record in records]
    axes.stackplot(times, *layers, labels=[state for state, _ in states], colors=colours, alpha=0.85, linewidth=0)
    axes.set_ylim(bottom=0)
    _legend(axes, "upper right", columns=4)
    axes.margins(x=0)
    low, high = axes.get_ylim()
    axes.set_ylim(low, 1.2 * max(high, 1.0))
    return figure


def supervised_loss(records: Sequence[MetricsRecord], x_label: str) -> Figure | None:
    """Loss of the `pretrain` or `sft` stage in nats a token, and on held-out documents."""
    trained = [(record.step, record.values["loss"]) for record in records if "loss" in record.values]
    if not trained:
        return None
    figure, axes = _canvas(x_label, "nats a token")
    axes.plot(*zip(*trained, strict=True), color=MUTED, linewidth=1.2, label="training")
    held_out = [(record.step, record.values["held_out_loss"]) for record in records if "held_out_loss" in record.values]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color=BLUE, marker="o", markersize=4, linewidth=1.6, label="held out")
    axes.set_ylim(bottom=0)
    _legend(axes, "upper right")
    return figure


def _canvas(x_label: str, y_label: str, *, height_inches: float = _SIZE_INCHES[1]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_SIZE_INCHES[0], height_inches), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label, color=MUTED, fontsize=9)
    axes.set_ylabel(y_label, color=MUTED, fontsize=9)
    axes.tick_params(colors=MUTED, labelsize=8.5, length=0)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    return figure, axes


def _unit_interval(axes: Axes) -> None:
    """Rewards in [0, 1] are drawn on the whole interval, so that pictures of several runs compare; others as they
    are."""
    low, high = axes.get_ylim()
    if low >= -0.1 and high <= 1.1:
        axes.set_ylim(-0.02, 1.02)


def _legend(axes: Axes, place: str, *, columns: int = 1) -> None:
    axes.legend(loc=place, frameon=False, fontsize=8.5, labelcolor=INK, ncols=columns)


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    smoothed: list[float] = np.convolve(values, np.ones(window) / window, mode="valid").tolist()
    return smoothed
