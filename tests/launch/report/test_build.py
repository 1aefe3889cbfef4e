"""report.json out of a run folder: every figure checked against the folder that was written, and folders that are
incomplete."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.report import build_report, format_report, write_report
from headrace.launch.report.run_files import RunFiles
from headrace.launch.report.summaries import histogram_summary

AddSessions = Callable[[list[Any]], None]

REQUIRED = {
    "eval_reward",
    "eval_reward_greedy",
    "eval_pass_at_8",
    "train_reward",
    "weight_updates",
    "update_pause_s",
    "update_load_s",
    "lag_versions",
    "utilisation",
    "tokens_per_s",
    "sessions_per_s",
    "logprob_gap",
    "ess",
    "ledger",
    "wall_s",
    "mode",
    "provenance",
}


def test_every_figure_is_what_the_folder_says(run_folder: Path) -> None:
    report = build_report(run_folder)
    assert report.keys() >= REQUIRED
    assert report["eval_reward"] == [[1, 0.29, 512], [26, 0.6, 512], [51, 0.81, 512]]
    assert report["eval_reward_greedy"][-1] == [51, pytest.approx(0.91), 64]
    assert report["eval_pass_at_8"][0] == [1, pytest.approx(0.44), 64]
    assert report["train_reward"][0] == [1, pytest.approx(0.305), 16]
    assert len(report["train_reward"]) == 100
    assert report["weight_updates"] == {"count": 50, "with_requests_running": 25, "failed": 1}
    assert report["relayed_weights"] == {"fetches": 3, "received_bytes": 1_400_000, "nbytes": 3_000_000}
    assert "3 times, 1.4 MB for 3.0 MB of weights (0.467)" in format_report(report)
    assert report["update_pause_s"]["max"] == pytest.approx(0.1)
    assert report["update_pause_s"]["p50"] == pytest.approx(0.051)
    assert report["update_load_s"]["max"] == pytest.approx(0.05)
    assert report["logprob_gap"]["probe"] == {"mean": 2e-5, "max": 1e-4, "n": 640, "version": 1}
    assert report["logprob_gap"]["in_run"] == {"mean": pytest.approx(1e-5), "n": 10_000}
    assert report["logprob_gap"]["older"]["n"] == 6_000
    assert report["logprob_gap"]["updates"] == {"mean": 2e-4, "n": 2, "alarms": 1}
    assert report["ess"] == {"token": pytest.approx(0.95), "sequence": pytest.approx(0.7), "token_min": 0.95}
    assert report["wall_s"] == 75.5
    assert report["mode"] == "async"
    assert report["provenance"]["seed"] == 3
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_last_evaluation_is_a_table_by_task_class(run_folder: Path) -> None:
    values = {
        "step": 100,
        "prompts": 3,
        "sessions": 6,
        "missing": 0,
        "reward": 0.5,
        "reward_n": 6,
        "reward_stderr": 0.25,
    }
    values |= {
        "pass_at_2": 0.75,
        "pass_at_2_n": 3,
        "pass_at_2_stderr": 0.1,
        "class/a/b/prompts": 1,
        "class/a/b/reward": 1,
    }
    values |= {"class/c/prompts": 2, "class/c/pass_at_2": 0.5, "class/c/pass_at_2_stderr": 0.2}
    line = {"time_s": 70, "stream": "eval", "step_name": "version", "step": 60, "values": values}
    with open(run_folder / "metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps(line) + "\n")
    report = build_report(run_folder)
    assert report["evaluations"][-1]["classes"]["a/b"] == {"prompts": 1, "reward": 1}
    assert report["eval_pass_at"] == {
        "2": [[60, 0.75, 3]],
        "8": [[1, pytest.approx(0.44), 64], [26, 0.75, 64], [51, pytest.approx(0.96), 64]],
    }
    assert format_report(report).partition("± one standard error\n")[2].splitlines()[:4] == [
        "       prompts         reward         pass@2",
        "  all        3  0.500 ± 0.250  0.750 ± 0.100",
        "  a/b        1  1.000 ± 0.000              –",
        "  c          2              –  0.500 ± 0.200",
    ]


def test_lag_is_by_trained_token(run_folder: Path) -> None:
    """1600 sessions of 10 tokens; lags 1, 2, 3 have 6 tokens of 10 in a quarter of the sessions each."""
    lag = build_report(run_folder)["lag_versions"]
    assert lag["n"] == 16_000
    assert lag["mean"] == pytest.approx((1 + 2 + 3) * 2400 / 16_000)
    assert (lag["p50"], lag["p95"], lag["max"]) == (0, 3, 3)


def test_shares_of_time_add_up_to_one(run_folder: Path) -> None:
    for role, shares in build_report(run_folder)["utilisation"].items():
        total = shares["busy"] + sum(shares["blocked"].values()) + shares["idle"]
        assert total == pytest.approx(1.0), role


def test_rates_are_over_the_time_of_training(run_folder: Path) -> None:
    """From the first version in service (10 s) to the last step (60 s); cancelled sessions were never graded."""
    report = build_report(run_folder)
    assert report["sessions_per_s"] == pytest.approx(2000 / 50)
    assert report["tokens_per_s"] == pytest.approx((1600 * 10 + 400 * 5) / 50)
    assert report["throughput"]["trained_sessions_per_s"] == pytest.approx(1600 / 50)


def test_the_ledger_balances(run_folder: Path) -> None:
    ledger = build_report(run_folder)["ledger"]
    assert ledger["issued"] == 2060
    assert ledger["trained"] == 1600
    assert ledger["dropped"]["zero_variance"] == 400
    assert ledger["dropped"]["cancelled"] == 60
    assert ledger["wasted_tokens"]["zero_variance"] == 2000
    assert ledger["balanced"]


def test_a_run_killed_in_mid_line_has_a_report(run_folder: Path, add_sessions: AddSessions) -> None:
    for name in ("activity.json", "provenance.json", "outcome.json"):
        (run_folder / name).unlink()
    add_sessions([(f"r{i}", "running", None, None, None, None, None, None) for i in range(60)])
    with open(run_folder / "metrics.jsonl", "a") as metrics:
        metrics.write('{"time_s": 99, "stream": "tra')
    report = write_report(run_folder)
    assert report["status"] == "unfinished"
    assert report["unreadable_lines"] == 1
    assert report["utilisation"] == {}
    assert report["ledger"]["issued"] == 2120
    assert report["ledger"]["running"] == 60
    assert report["ledger"]["balanced"]


def test_a_session_without_a_state_is_missed(run_folder: Path) -> None:
    with closing(sqlite3.connect(run_folder / "ledger.sqlite")) as database, database:
        database.execute("delete from sessions where session_id = 'c7'")
    report = build_report(run_folder)
    assert not report["ledger"]["balanced"]
    assert "NOT BALANCED" in format_report(report)


@pytest.mark.parametrize(
    ("line", "agrees"),
    [
        ({"step": 101, "session_ids": ["t0", "t1"]}, True),  # trained, and not yet booked when the run was killed
        ({"step": 101, "session_ids": ["g0000000-00"]}, False),  # twice
        ({"step": 101, "session_ids": ["z0"]}, False),  # of a group that the ledger calls dropped
        ({"step": 101, "session_ids": ["nobody"]}, False),
    ],
)
def test_the_ledger_is_compared_with_the_learners_own_record(
    run_folder: Path, add_sessions: AddSessions, line: dict[str, object], agrees: bool
) -> None:
    add_sessions([(f"t{i}", "training", None, None, None, None, 1.0, 10) for i in range(2)])
    assert build_report(run_folder)["ledger"]["balanced"]
    with open(run_folder / "trained.jsonl", "a") as record:
        record.write(json.dumps(line) + "\n")
    ledger = build_report(run_folder)["ledger"]
    assert ledger["balanced"] == agrees
    assert ledger["learner_trained"] == 1600 + len(line["session_ids"])  # type: ignore[arg-type]


def test_a_session_that_the_learner_never_trained_is_noticed(run_folder: Path) -> None:
    lines = (run_folder / "trained.jsonl").read_text().splitlines()
    (run_folder / "trained.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert not build_report(run_folder)["ledger"]["balanced"]


@pytest.mark.parametrize("content", [b"no database, but long enough" * 100, b"SQLite format 3\0" * 9])
def test_a_damaged_ledger_is_named(run_folder: Path, content: bytes) -> None:
    (run_folder / "ledger.sqlite").write_bytes(content)
    assert build_report(run_folder)["damaged_files"].keys() == {"ledger.sqlite"}


@pytest.mark.parametrize("name", ["config.yaml", "outcome.json", "activity.json", "provenance.json"])
@pytest.mark.parametrize(
    "content", [b"{a: [", b"\xff\xfe\x00", b"[1, 2]", b"", b"null", b"[" * 100_000, b"a: b: c\n\t- x"]
)
def test_a_damaged_file_is_named_and_left_out(run_folder: Path, name: str, content: bytes) -> None:
    (run_folder / name).write_bytes(content)
    report = build_report(run_folder)
    assert report["damaged_files"].keys() == {name}
    assert f"DAMAGED          {name}: " in format_report(report)
    assert report["steps"] == 100


def test_the_page_names_a_damaged_file(run_folder: Path) -> None:
    (run_folder / "outcome.json").write_bytes(b"\xff")
    write_report(run_folder)
    assert "outcome.json is damaged" in (run_folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("activity.json", {"roles": [1]}),
        ("activity.json", {"roles": {"learner": 1}}),
        ("activity.json", {"roles": {"learner": {"blocked": {}}}}),
        ("activity.json", {"roles": {"learner": {"busy": float("nan")}}}),
    ],
)
def test_a_file_of_another_shape_is_named(run_folder: Path, name: str, content: object) -> None:
    (run_folder / name).write_text(json.dumps(content))
    assert build_report(run_folder)["damaged_files"].keys() == {name}


def test_a_folder_in_the_place_of_a_file_is_named(run_folder: Path) -> None:
    (run_folder / "outcome.json").unlink()
    (run_folder / "outcome.json").mkdir()
    assert build_report(run_folder)["damaged_files"].keys() == {"outcome.json"}


@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 1e400, True])
def test_lines_of_any_content_are_counted_or_left_out(run_folder: Path, value: object) -> None:
    """Every value of a line of each file replaced in turn."""
    for file in ("metrics.jsonl", "trained.jsonl", "trajectories/grader-0.jsonl"):
        path = run_folder / file
        line = json.loads(path.read_text().splitlines()[-1])
        with path.open("a") as lines:
            lines.writelines(json.dumps(line | {key: value}) + "\n" for key in line)
            lines.write(json.dumps(value) + "\n")
    json.dumps(write_report(run_folder), allow_nan=False)


def test_missing_rewards_are_reported(run_folder: Path, add_sessions: AddSessions) -> None:
    """Means leave sessions without a reward out; the report says how many there are."""
    values = {"step": 100, "prompts": 4, "sessions": 12, "missing": 8, "reward": 1.0, "reward_n": 4}
    none = {"step": 120, "prompts": 4, "sessions": 12, "missing": 12}
    with open(run_folder / "metrics.jsonl", "a") as metrics:
        for version, given in ((60, values), (61, none)):
            line = {"time_s": 70.0, "stream": "eval", "step_name": "version", "step": version, "values": given}
            metrics.write(json.dumps(line) + "\n")
    add_sessions([(f"u{i}", "dropped", "ungraded", None, None, None, None, 5) for i in range(500)])
    report = write_report(run_folder)
    assert report["eval_missing"] == [[1, 0, 576], [26, 0, 576], [51, 0, 576], [60, 8, 12], [61, 12, 12]]
    assert report["train_missing"] == {"missing": 500, "graded": 2500}
    assert report["ledger"]["dropped"]["ungraded"] == 500
    words = "12 of 12 held-out sessions of version 61, 500 of 2500 graded training sessions (20.0%)"
    assert words in format_report(report)
    assert words in (run_folder / "report.html").read_text()


def test_nothing_is_missing(run_folder: Path) -> None:
    assert "without reward   none" in format_report(build_report(run_folder))


def test_an_empty_folder_has_a_report(tmp_path: Path) -> None:
    report = write_report(tmp_path)
    assert report["eval_reward"] == []
    assert report["wall_s"] is None
    assert report["lag_versions"]["n"] == 0
    assert report["ledger"]["balanced"]
    assert "held-out reward" in format_report(report)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_late_and_repeated_steps_are_all_kept(run_folder: Path) -> None:
    """cases L136: wandb/wandb#10628: after a resume, steps come again and out of order; an evaluation made twice
    counts once."""
    with open(run_folder / "metrics.jsonl", "a") as metrics:
        for step in (99, 50):
            line = {
                "time_s": 80.0,
                "stream": "train",
                "step_name": "step",
                "step": step,
                "values": {"reward/mean": 0.5},
            }
            metrics.write(json.dumps(line) + "\n")
        line = {
            "time_s": 81,
            "stream": "eval",
            "step_name": "version",
            "step": 26,
            "values": {"step": 50, "reward": 0.7, "reward_n": 8},
        }
        metrics.write(json.dumps(line) + "\n")
    assert len(RunFiles(run_folder).stream("train")) == 102
    report = build_report(run_folder)
    assert report["eval_reward"][1] == [26, 0.7, 8]


def test_quantiles_of_a_histogram() -> None:
    assert histogram_summary({0: 1, 5: 1}) == {"mean": 2.5, "p50": 0, "p95": 5, "max": 5, "n": 2}
    assert histogram_summary({2: 95, 9: 5})["p95"] == 2
    assert histogram_summary({2: 94, 9: 6})["p95"] == 9
