"""Lines on the terminal and in the file beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.launch.console import Console


@pytest.mark.parametrize("quiet", [False, True])
def test_the_file_has_every_line_as_soon_as_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    console, file = Console(quiet=quiet), tmp_path / "console.log"
    console.say("before there is a folder")
    console.keep(file)
    console.say("started")
    console.line("learner-0", "a lone \ud800 surrogate" if quiet else "a line")
    console.error("it failed\n")
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [re.sub(r"^ *[0-9.]+s  ", "", line) for line in lines] == [
        "launcher           started",
        "learner-0          a lone \\ud800 surrogate" if quiet else "learner-0          a line",
        "it failed",
    ]
    out, err = capsys.readouterr()
    assert (out == "") is quiet
    assert err == "it failed\n"


def test_a_full_disk_is_somebody_elses_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.keep(Path("/dev/full"))
    console.say("on and on")
    assert "on and on" in capsys.readouterr().out


def test_each_job_of_a_sweep_has_its_own(tmp_path: Path) -> None:
    console = Console(quiet=True)
    for number in range(2):
        console.keep(tmp_path / f"{number}.log")
        console.say(f"job {number}")
    assert "job 1" not in (tmp_path / "0.log").read_text()
    assert "job 1" in (tmp_path / "1.log").read_text()
