"""The record of sessions on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.actors.grader.trajectory_shard import TrajectoryShard, shard_path, to_line
from headrace.actors.session import ChatMessage, ToolCall, Trajectory

MakeSession = Callable[..., Trajectory]


def test_a_line_holds_the_session(make_session: MakeSession) -> None:
    session = make_session("ünï\n[1,2]", "[1,2]").graded(0.5, {"match": 0.5}, {"why": "half"}, grade=0.01)
    calls = ChatMessage("assistant", "", (ToolCall("run", {"x": [1]}),))
    session = replace(session, messages=(*session.messages, calls))
    line = to_line(session, actor_name="grader/0", graded_at_s=5.0)
    record = json.loads(line)
    assert line.count("\n") == 1
    assert record["session_id"] == "s0"
    assert (record["reward"], record["rewards"], record["notes"]) == (0.5, {"match": 0.5}, {"why": "half"})
    assert record["token_ids"] == [1, 2, 3, 0, 1]
    assert record["logprobs"] == [0.0, 0.0, 0.0, -0.5, -0.25]
    assert record["loss_mask"] == [0, 0, 0, 1, 1]
    assert record["versions"] == [-1, -1, -1, 7, 7]
    assert record["turns"] == [[3, 5, "stop"]]
    assert record["timings_s"] == {"run": 0.5, "grade": 0.01}
    assert record["messages"][1] == {"role": "assistant", "content": "ünï\n[1,2]"}
    assert record["messages"][2]["tool_calls"] == [{"name": "run", "arguments": {"x": [1]}}]


def test_numbers_that_are_not_finite_stay_readable(make_session: MakeSession) -> None:
    """cases D80: a NaN log-prob must not break the reader, nor become a null."""
    session = make_session("a", logprobs=(float("nan"), float("-inf"), -1.0))
    record = json.loads(to_line(session, actor_name="grader/0", graded_at_s=0.0))
    assert record["logprobs"] == [0.0, 0.0, 0.0, "nan", "-inf", -1.0]


def test_a_line_is_there_when_append_returns(make_session: MakeSession, tmp_path: Path) -> None:
    path = shard_path(tmp_path / "trajectories", "grader/1")
    assert path.name == "grader-1.jsonl"
    shard = TrajectoryShard(path)
    line = to_line(make_session("x" * 1000), actor_name="grader/1", graded_at_s=0.0)
    for number in range(1, 20):
        shard.append(line)
        assert path.stat().st_size == number * len(line)
    shard.close()
    shard.close()
    assert path.read_text().count("\n") == 19


@pytest.mark.parametrize("whole", ["", '{"session_id":"a"}\n'])
@pytest.mark.parametrize("half", ["", '{"session_id":"b', '{"b":"' + "x" * 200_000])
def test_what_a_killed_predecessor_left_half_is_cut_off(whole: str, half: str, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(whole + half)
    shard = TrajectoryShard(path)
    shard.append("{}\n")
    shard.close()
    assert path.read_text() == whole + "{}\n"


def test_half_a_surrogate_pair_is_written(make_session: MakeSession, tmp_path: Path) -> None:
    shard = TrajectoryShard(tmp_path / "s.jsonl")
    shard.append(to_line(make_session("broken \ud83d"), actor_name="g/0", graded_at_s=0.0))
    shard.close()
    assert json.loads((tmp_path / "s.jsonl").read_text())["messages"][1]["content"] == "broken \ud83d"
