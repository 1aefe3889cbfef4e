"""The parts of report.json, each out of the files that it needs. docs/report.md lists every key. Pure but for
reading."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from headrace.launch.report.run_files import MetricsRecord, RunFiles
from headrace.launch.report.summaries import histogram_summary, mean, quantiles, values_of, weighted_mean

STATES = ("running", "grading", "ready", "training", "trained")
REASONS = (
    "over_age", "cancelled", "failed", "timed_out", "zero_variance", "ungraded", "filtered", "quarantined",
    "rolled_back", "lost", "straggler",
)  # fmt: skip


def evaluations(run: RunFiles) -> list[dict[str, Any]]:
    """One entry for each evaluation, by version; of a version that was evaluated twice, the last. `classes`: the same
    figures of each task class, where there are several."""
    by_version = {int(record.step): record for record in run.stream("eval") if "step" in record.values}
    return [
        {"version": version, "time_s": record.time_s, **_by_class(record.values)}
        for version, record in sorted(by_version.items())
    ]


def _by_class(values: dict[str, float]) -> dict[str, Any]:
    entry: dict[str, Any] = {name: value for name, value in values.items() if not name.startswith("class/")}
    classes: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        if name.startswith("class/"):
            task_class, _, figure = name.removeprefix("class/").rpartition("/")
            classes.setdefault(task_class, {})[figure] = value
    return entry | ({"classes": classes} if classes else {})


def pass_curves(entries: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """k → [[version, pass@k, n], …], of each k that any evaluation tells."""
    found = {match for entry in entries for name in entry if (match := re.fullmatch(r"pass_at_(\d+)", name))}
    ks = sorted({int(match[1]) for match in found})
    return {str(k): eval_curve(entries, f"pass_at_{k}") for k in ks}


def eval_curve(entries: list[dict[str, Any]], name: str) -> list[list[float]]:
    """[[version, mean, n], …] of one figure."""
    return [
        [entry["version"], entry[name], int(entry[f"{name}_n"])]
        for entry in entries
        if {name, f"{name}_n"} <= entry.keys()
    ]


def eval_missing(entries: list[dict[str, Any]]) -> list[list[int]]:
    """[[version, sessions without a reward, all sessions], …]: the means of an evaluation leave the former out."""
    return [
        [entry["version"], int(entry["missing"]), int(entry.get("sessions", _with_reward(entry) + entry["missing"]))]
        for entry in entries
        if "missing" in entry
    ]


def _with_reward(entry: dict[str, Any]) -> float:
    return float(entry.get("reward_n", 0.0) + entry.get("greedy_n", 0.0))


def train_missing(run: RunFiles) -> dict[str, int]:
    """Training sessions that a grader has answered for, and those of them without a reward."""
    graded = [line for line in run.ledger if line.get("tokens") is not None]
    return {"missing": sum(line.get("reward") is None for line in graded), "graded": len(graded)}


def train_reward(run: RunFiles) -> list[list[float]]:
    """[[step, mean reward of the sessions trained in it, their number], …]."""
    return [
        [int(record.step), record.values["reward/mean"], int(record.values.get("sessions", 0))]
        for record in run.stream("train")
        if "reward/mean" in record.values
    ]


def weight_updates(run: RunFiles) -> dict[str, int]:
    """Versions that generators took into service; those that found requests in flight; those that failed somewhere."""
    commits = [record for record in run.stream("weights") if "pause_s" in record.values]
    busy = {int(record.step) for record in commits if record.values.get("requests_running", 0.0) > 0}
    failed = {int(record.step) for record in run.stream("weights") if record.values.get("failed", 0.0) > 0}
    unpublished = max(values_of(run.stream("train"), "publications/failed"), default=0.0)
    return {
        "count": len({int(record.step) for record in commits}),
        "with_requests_running": len(busy),
        "failed": len(failed) + int(unpublished),
    }


def relayed_weights(run: RunFiles) -> dict[str, int]:
    """What came to relays, once a host: `fetches` of a version, `received_bytes` of messages, `nbytes` of weights. All
    are 0 where nothing travels by messages."""
    fetches = [record.values for record in run.streams("weights/relay-")]
    sums = {name: int(sum(values.get(name, 0.0) for values in fetches)) for name in ("received_bytes", "nbytes")}
    return {"fetches": len(fetches), **sums}


def update_seconds(run: RunFiles, name: str) -> dict[str, float | None]:
    """Quantiles over generators and versions of `pause_s` or `load_s`."""
    return quantiles(values_of(run.stream("weights"), name))


def lag_histogram(run: RunFiles) -> dict[int, int]:
    """Lag → trained tokens that had it."""
    counts: Counter[int] = Counter()
    for line in run.ledger:
        if line.get("state") == "trained":
            for lag, tokens in (line.get("token_lags") or {}).items():
                counts[int(lag)] += int(tokens)
    return dict(sorted(counts.items()))


def session_lags(run: RunFiles) -> dict[str, float | int | None]:
    """Of trained sessions, by their oldest token."""
    counts = Counter(
        int(line["lag"]) for line in run.ledger if line.get("state") == "trained" and line.get("lag") is not None
    )
    return histogram_summary(counts)


def utilisation(run: RunFiles) -> dict[str, dict[str, Any]]:
    """Role → busy, blocked (by role), idle: shares that add up to 1."""
    return run.activity


def ledger(run: RunFiles) -> dict[str, Any]:
    """Counts by state and reason, wasted tokens by reason, and whether they balance: every session that the dispatcher
    issued has a state, and what it calls trained is what the learner's own record says."""
    states, dropped = Counter[str](), Counter[str]()
    wasted: Counter[str] = Counter()
    for session in run.ledger:
        if session["state"] == "dropped":
            reason = str(session.get("reason"))
            dropped[reason] += 1
            wasted[reason] += int(session.get("tokens") or 0)
        else:
            states[session["state"]] += 1
    counted = {state: states[state] for state in STATES}
    drops = {reason: dropped[reason] for reason in REASONS}
    return {
        "issued": run.num_issued,
        **counted,
        "dropped": drops,
        "wasted_tokens": {reason: wasted[reason] for reason in REASONS},
        "learner_trained": None if run.trained is None else len(run.trained),
        "balanced": run.num_issued == sum(counted.values()) + sum(drops.values()) and learner_agrees(run),
    }


def learner_agrees(run: RunFiles) -> bool:
    """Whether the learner's record, where there is one, has each session that the ledger calls trained once, with the
    same step, and none that the ledger never handed to it. A batch that it trained just before a run was cut short may
    not be booked yet."""
    if run.trained is None:
        return True
    booked = {(session.get("step"), session["session_id"]) for session in run.ledger if session["state"] == "trained"}
    cut_short = {
        session["session_id"]
        for session in run.ledger
        if session["state"] == "training" or session.get("reason") == "cancelled"
    }
    recorded = set(run.trained)
    once = len({session_id for _, session_id in run.trained}) == len(run.trained)
    return once and booked <= recorded and all(session_id in cut_short for _, session_id in recorded - booked)


def training_seconds(run: RunFiles) -> float | None:
    """From the first version in service to the last optimizer step; None before there is a step."""
    served = [record.time_s for record in run.stream("dispatcher") if record.values.get("version", 0.0) > 0]
    steps = run.stream("train")
    if not served or not steps:
        return None
    seconds = steps[-1].time_s - served[0]
    return seconds if seconds > 0 else None


def throughput(run: RunFiles) -> dict[str, float | None]:
    """Over the time of training. Sessions and tokens: those that were graded, trained or not; `trained_*`: those
    that were trained."""
    seconds = training_seconds(run)
    graded = [line for line in run.ledger if line.get("tokens") is not None]
    trained = [line for line in graded if line.get("state") == "trained"]
    if seconds is None:
        names = ("tokens_per_s", "sessions_per_s", "trained_tokens_per_s", "trained_sessions_per_s", "training_s")
        return dict.fromkeys(names)
    return {
        "tokens_per_s": sum(line["tokens"] for line in graded) / seconds,
        "sessions_per_s": len(graded) / seconds,
        "trained_tokens_per_s": sum(line["tokens"] for line in trained) / seconds,
        "trained_sessions_per_s": len(trained) / seconds,
        "training_s": seconds,
    }


def logprob_gap(run: RunFiles) -> dict[str, Any]:
    """|Δ log-prob| of learner against engine: `probe` (fresh KV, same version), `in_run` on tokens of the trained
    version itself, `older` on the others (mismatch and staleness); each with the number of tokens. `updates`: the probe
    that goes with every version; its largest mean, how many were compared, and how many were past their bound."""
    probes = run.stream("logprob_probe")
    probe: MetricsRecord | None = probes[-1] if probes else None
    updates = run.stream("update_probe")
    train = run.stream("train")
    same, num_same = weighted_mean(train, "logprob_gap/same_version_mean", "logprob_gap/same_version_tokens")
    older, num_older = weighted_mean(train, "logprob_gap/older_mean", "logprob_gap/older_tokens")
    return {
        "probe": {
            "mean": probe.values.get("mean") if probe else None,
            "max": probe.values.get("max") if probe else None,
            "n": int(probe.values.get("tokens", 0)) if probe else 0,
            "version": int(probe.step) if probe else None,
        },
        "in_run": {"mean": same, "n": num_same},
        "older": {"mean": older, "n": num_older},
        "updates": {
            "mean": max((record.values.get("mean", float("inf")) for record in updates), default=None),
            "n": len(updates),
            "alarms": sum(not record.values.get("mean", float("inf")) <= record.values["bound"] for record in updates),
        },
    }


def ess(run: RunFiles) -> dict[str, float | None]:
    """Effective sample size over N, mean over the steps, and the smallest by token."""
    by_token = values_of(run.stream("train"), "ess/token")
    return {
        "token": mean(by_token),
        "sequence": mean(values_of(run.stream("train"), "ess/sequence")),
        "token_min": min(by_token, default=None),
    }
