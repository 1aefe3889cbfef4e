"""Who joined and left, in the three forms of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from headrace.launch.membership import MembershipChange, append_change
from headrace.launch.report import build_report, format_report, write_report


def change(time_s: float, event: Literal["joined", "left"], count: int, detail: str) -> MembershipChange:
    return MembershipChange(time_s, event, "generator-1", ("generator/1",), "generator", "n", count, detail)


def test_it_stands_in_each_form_and_half_a_line_in_none(run_folder: Path) -> None:
    assert build_report(run_folder)["membership"] == []
    append_change(run_folder, change(12.4, "joined", 2, "it serves version 3"))
    append_change(run_folder, change(60.0, "left", 1, "<b>"))
    with (run_folder / "membership.jsonl").open("a") as file:
        file.write('{"time_s": 70, "event": "joined", "actors": null}\n{"time_s": 7')
    report = write_report(run_folder)
    assert [(entry["event"], entry["count"]) for entry in report["membership"]] == [("joined", 2), ("left", 1)]
    assert "generator/1 joined at 12 s, generator=2: it serves version 3" in format_report(report)
    page = (run_folder / "report.html").read_text()
    assert "Who joined and left" in page
    assert "&lt;b&gt;" in page
