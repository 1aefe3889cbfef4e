"""The report as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.launch.report.evaluation_table import evaluation_rows, format_rows
from headrace.launch.report.membership import in_words


def format_report(report: Mapping[str, Any]) -> str:
    """A screen of lines; a figure that is not known is a dash."""
    updates, lag, ledger = report["weight_updates"], report["lag_versions"], report["ledger"]
    gap, ess = report["logprob_gap"], report["ess"]
    drops = ", ".join(f"{reason} {count}" for reason, count in ledger["dropped"].items() if count) or "none"
    rows = [
        (
            "run",
            f"{report['run']}  {report['status']}  mode {report['mode'] or '–'}  wall {number(report['wall_s'], 0)} s",
        ),
        ("held-out reward", _curve(report["eval_reward"], "temperature 1")),
        ("", _curve(report["eval_reward_greedy"], "greedy")),
        *(("", _curve(points, f"pass@{k}")) for k, points in list(report["eval_pass_at"].items())[-1:]),
        ("train reward", _train(report["train_reward"])),
        ("without reward", missing(report)),
        ("steps", f"{report['steps']}"),
        (
            "weight updates",
            f"{updates['count']}, with requests running {updates['with_requests_running']}, failed {updates['failed']}",
        ),
        ("update pause", _quantiles(report["update_pause_s"])),
        ("update load", _quantiles(report["update_load_s"])),
        (
            "lag by token",
            f"mean {number(lag['mean'], 2)}  p50 {number(lag['p50'], 0)}  "
            f"p95 {number(lag['p95'], 0)}  max {number(lag['max'], 0)}",
        ),
        (
            "throughput",
            f"{number(report['sessions_per_s'], 1)} sessions/s, {number(report['tokens_per_s'], 0)} tokens/s",
        ),
        (
            "log-prob gap",
            f"probe {number(gap['probe']['mean'], 6)} (n {gap['probe']['n']}), "
            f"in run {number(gap['in_run']['mean'], 6)} (n {gap['in_run']['n']}), "
            f"worst update {number(gap['updates']['mean'], 6)} ({gap['updates']['alarms']} alarms in "
            f"{gap['updates']['n']})",
        ),
        ("ESS / N", f"token {number(ess['token'], 3)}, sequence {number(ess['sequence'], 3)}"),
        (
            "ledger",
            f"issued {ledger['issued']}, trained {ledger['trained']}, "
            f"dropped {sum(ledger['dropped'].values())} ({drops}), "
            f"{'balanced' if ledger['balanced'] else 'NOT BALANCED'}",
        ),
    ]
    relayed = report["relayed_weights"]
    if relayed["nbytes"]:
        share = number(relayed["received_bytes"] / relayed["nbytes"], 3)
        megabytes = f"{relayed['received_bytes'] / 1e6:.1f} MB for {relayed['nbytes'] / 1e6:.1f} MB of weights"
        rows.append(("weights relayed", f"{relayed['fetches']} times, {megabytes} ({share})"))
    stalls = report["stalls"]
    if stalls["count"]:
        longest_s = number(stalls["longest_s"], 0)
        rows.append(("STOOD STILL", f"{stalls['count']} times, at most {longest_s} s; last: {stalls['last_summary']}"))
    rows += [("membership", in_words(change)) for change in report["membership"]]
    rows += [("DAMAGED", f"{name}: {why}") for name, why in report["damaged_files"].items()]
    if report["unreadable_lines"]:
        rows.append(("unreadable", f"{report['unreadable_lines']} lines, not counted above"))
    lines = [f"{name:<16} {text}" for name, text in rows]
    if report["evaluations"]:
        last = report["evaluations"][-1]
        lines.append(f"{'last evaluation':<16} version {last['version']}, ± one standard error")
        lines += format_rows(evaluation_rows(last), "  ")
    lines.append(f"{'utilisation':<16} {'busy':>6} {'idle':>6}  blocked on")
    for role, shares in report["utilisation"].items():
        blocked = ", ".join(f"{peer} {100 * share:.0f}%" for peer, share in shares["blocked"].items() if share >= 0.005)
        lines.append(f"  {role:<14} {100 * shares['busy']:>5.0f}% {100 * shares['idle']:>5.0f}%  {blocked or '–'}")
    provenance = report["provenance"]
    if provenance:
        dirty = " (dirty)" if provenance.get("git_dirty") else ""
        commit = str(provenance.get("git_commit") or "unknown")[:12]
        lines.append(f"{'provenance':<16} seed {provenance.get('seed')}, commit {commit}{dirty}")
    return "\n".join(lines)


def missing(report: Mapping[str, Any]) -> str:
    """Sessions that no figure counts, since they have no reward: of the evaluation with the most of them, and of
    training."""
    parts = []
    worst = max(report["eval_missing"], key=lambda point: point[1], default=None)
    if worst is not None and worst[1]:
        version, missing, sessions = worst
        parts.append(f"{missing} of {sessions} held-out sessions of version {version}")
    train = report["train_missing"]
    if train["missing"]:
        share = train["missing"] / train["graded"]
        parts.append(f"{train['missing']} of {train['graded']} graded training sessions ({share:.1%})")
    return ", ".join(parts) or "none"


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _curve(points: list[list[float]], label: str) -> str:
    if not points:
        return f"{label}: –"
    (first_version, first, _), (last_version, last, n) = points[0], points[-1]
    best = max(point[1] for point in points)
    return (
        f"{label}: {first:.3f} (version {first_version:.0f}) → {last:.3f} (version {last_version:.0f}, n {n:.0f}), "
        f"best {best:.3f}, {len(points)} evaluations"
    )


def _train(points: list[list[float]]) -> str:
    if not points:
        return "–"
    edge = max(1, min(20, len(points) // 4))
    first = sum(point[1] for point in points[:edge]) / edge
    last = sum(point[1] for point in points[-edge:]) / edge
    return f"{first:.3f} → {last:.3f} (means of the first and last {edge} steps)"


def _quantiles(values: Mapping[str, float | None]) -> str:
    return "  ".join(
        f"{name} {number(None if value is None else 1000 * value, 1)} ms" for name, value in values.items()
    )
