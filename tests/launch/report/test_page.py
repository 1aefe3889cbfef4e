"""report.html: self-contained, with every picture, and nothing in it that a session's text could break."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.launch.report import build_report, pictures, write_report
from headrace.launch.report.example_sessions import example_sessions
from headrace.launch.report.page import figures
from headrace.launch.report.run_files import RunFiles


def test_the_page_holds_every_picture_and_fetches_nothing(run_folder: Path) -> None:
    write_report(run_folder)
    page = (run_folder / "report.html").read_text()
    assert page.count("<svg") == 8
    assert "NaN" not in page
    assert not re.findall(r"<(?:script|link|img)\b", page)
    assert "0.390 → 0.910" in page
    assert "dropped: zero_variance" in page


def test_the_texts_of_sessions_are_escaped(run_folder: Path) -> None:
    write_report(run_folder)
    page = (run_folder / "report.html").read_text()
    assert "sort &lt;19&gt;" in page
    assert "sort <19>" not in page


def test_the_best_and_the_worst_are_the_newest_of_their_reward(run_folder: Path) -> None:
    examples = example_sessions(RunFiles(run_folder), num=2)
    assert [(s["session_id"], s["reward"]) for s in examples["best"]] == [("g19-00", 1.0), ("g17-00", 1.0)]
    assert [(s["session_id"], s["reward"]) for s in examples["worst"]] == [("g18-00", 0.0), ("g16-00", 0.0)]


def test_pictures_without_data_are_left_out(tmp_path: Path) -> None:
    assert figures(build_report(tmp_path), RunFiles(tmp_path)) == []


def test_an_evaluation_without_any_reward_has_no_picture() -> None:
    assert pictures.held_out_reward([{"version": 1, "step": 0, "sessions": 12.0, "missing": 12.0}]) is None
