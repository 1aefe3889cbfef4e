"""The learner's own record of what it trained."""

from __future__ import annotations

import json

from headrace.actors.learner.trained_log import TrainedLog


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_is_cut_back_to_the_checkpoint_and_goes_on(tmp_path):
    path = tmp_path / "run" / "trained.jsonl"
    log = TrainedLog(path)
    for step in range(1, 5):
        log.append(step, (f"a{step}", f"b{step}"))
    with path.open("a") as file:
        file.write('{"step": 5, "sess')  # killed in mid-line
    again = TrainedLog(path)
    again.cut_back(2)
    assert (again.of_step(2), again.of_step(3)) == (("a2", "b2"), ())
    again.append(3, ("c3",))
    assert lines(path) == [
        {"step": 1, "session_ids": ["a1", "b1"]},
        {"step": 2, "session_ids": ["a2", "b2"]},
        {"step": 3, "session_ids": ["c3"]},
    ]
    assert [file.name for file in path.parent.iterdir()] == ["trained.jsonl"]


def test_without_a_path_nothing_is_kept(tmp_path):
    log = TrainedLog(None)
    log.append(1, ("a",))
    log.cut_back(0)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_cut_back(tmp_path):
    TrainedLog(tmp_path / "trained.jsonl").cut_back(0)
    assert list(tmp_path.iterdir()) == []
