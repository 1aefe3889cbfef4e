"""What a killed writer left of its last line."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.transport.durable import cut_half_line


@pytest.mark.parametrize(
    ("left", "whole"),
    [("", ""), ("a\n", "a\n"), ("a\nb", "a\n"), ("b", ""), ("a\n" + "b" * 200_000, "a\n"), ("a\n\n", "a\n\n")],
)
def test_half_a_line_is_cut_off(tmp_path: Path, left: str, whole: str) -> None:
    path = tmp_path / "lines"
    path.write_text(left)
    cut_half_line(path)
    assert path.read_text() == whole


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    cut_half_line(tmp_path / "none")
    assert not list(tmp_path.iterdir())
