"""What the report says of a run that stood still."""

from __future__ import annotations

from pathlib import Path

from headrace.launch.report import build_report, format_report
from headrace.launch.report.stalls import stalls

STALL = {"told": 1, "quiet_s": 60.5, "is_stall": True, "kind": "silent", "culprit": "generator/0", "summary": "it is."}


def test_episodes_are_counted_once_and_busy_ones_are_not() -> None:
    lines = [
        STALL,
        {**STALL, "told": 2, "quiet_s": 120.0, "kind": "cycle", "culprit": "a/0 → b/0 → a/0", "summary": "a cycle"},
        {"lasted_s": 150.0},
        {**STALL, "is_stall": False, "kind": "busy", "culprit": "learner/0", "quiet_s": 400.0},
        {"lasted_s": 500.0},
        {**STALL, "kind": "quiet", "culprit": ""},
        {**STALL, "told": 1, "quiet_s": 61.0},  # the monitor was restarted
    ]
    assert stalls(lines[:3]) == {
        "count": 1, "longest_s": 150.0, "last_culprit": "a/0 → b/0 → a/0", "last_summary": "a cycle",
    }  # fmt: skip
    assert stalls(lines[:6])["last_culprit"] == "quiet"
    assert (stalls(lines)["count"], stalls(lines)["longest_s"]) == (3, 150.0)


def test_runs_without_one_and_damaged_lines(tmp_path: Path) -> None:
    nothing = {"count": 0, "longest_s": None, "last_culprit": None, "last_summary": None}
    assert stalls([]) == stalls([{"lasted_s": "x"}, {}]) == build_report(tmp_path)["stalls"] == nothing
    assert stalls([{"is_stall": True}])["last_culprit"] == "unknown"
    (tmp_path / "stalls.jsonl").write_text('{"told": 1, "is_stall": true, "quiet_s": 60.0, "summary": "why"}\n{"tol')
    report = build_report(tmp_path)
    assert (report["stalls"]["count"], report["unreadable_lines"]) == (1, 1)
    assert "STOOD STILL      1 times, at most 60 s; last: why" in format_report(report)
