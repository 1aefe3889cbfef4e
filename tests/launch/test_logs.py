"""Children's logs: nothing that was printed is lost, and the console has whole, prefixed lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.launch.child import Child
from headrace.launch.logs import MAX_LINE_BYTES, LogTail, last_lines


def follow(path: Path) -> tuple[LogTail, list[tuple[str, str]]]:
    lines: list[tuple[str, str]] = []
    return LogTail("worker-0", path, lambda name, line: lines.append((name, line))), lines


def test_half_a_line_before_a_kill_is_in_the_log_and_on_the_console(tmp_path: Path) -> None:
    """cases L137: NVIDIA/Megatron-LM#5072."""
    log = tmp_path / "worker-0.log"
    code = "import os; print('whole'); print('half a li', end='', flush=True); os.kill(os.getpid(), 9)"

    async def run() -> int:
        child = Child([sys.executable, "-c", code], environment={**os.environ, "PYTHONUNBUFFERED": "1"}, log=log)
        return await child.ended

    assert asyncio.run(run()) == -signal.SIGKILL
    assert log.read_text() == "whole\nhalf a li"
    tail, lines = follow(log)
    tail.drain()
    assert lines == [("worker-0", "whole"), ("worker-0", "half a li")]
    assert last_lines(log) == "whole\nhalf a li"


def test_a_line_is_shown_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail, lines = follow(log)
    tail.poll()  # not there yet
    log.write_text("a\nb")
    tail.poll()
    assert lines == [("worker-0", "a")]
    with log.open("a") as file:
        file.write("c\r\n10%\r100%\n")
    tail.poll()
    assert [line for _, line in lines] == ["a", "bc", "100%"]


def test_a_flood_without_an_end_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (3 * MAX_LINE_BYTES + 1))
    tail, lines = follow(log)
    tail.drain()
    assert "".join(line for _, line in lines) == "x" * (3 * MAX_LINE_BYTES + 1)
    assert max(len(line) for _, line in lines) == MAX_LINE_BYTES


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\r\n"), min_size=1), min_size=1), st.data())
def test_however_the_writes_are_cut_the_lines_are_the_same(texts: list[str], data: st.DataObject) -> None:
    import tempfile

    whole = "\n".join(texts).encode()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        tail, lines = follow(log)
        position = 0
        while position < len(whole):
            size = data.draw(st.integers(1, len(whole)))
            with log.open("ab") as file:
                file.write(whole[position : position + size])
            position += size
            tail.poll()
        tail.drain()
    assert [line for _, line in lines] == texts


def test_the_last_lines_of_nothing(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none") == "(no log)"
