"""The learner's own record of what it trained."""

from __future__ import annotations

import json

import pytest

from headrace.actors.learner.trained_log import TrainedLog, TrainedStep


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_is_cut_back_to_the_checkpoint_and_goes_on(tmp_path):
    path = tmp_path / "run" / "trained.jsonl"
    log = TrainedLog(path)
    for step in range(1, 5):
        log.append(TrainedStep(step, (f"a{step}", f"b{step}")))
    with path.open("a") as file:
        file.write('{"step": 5, "sess')  # killed in mid-line
    again = TrainedLog(path)
    again.cut_back(2)
    assert (again.of_step(2), again.of_step(3)) == (("a2", "b2"), ())
    again.append(TrainedStep(3, ("c3",)))
    assert lines(path) == [
        {"step": 1, "session_ids": ["a1", "b1"]},
        {"step": 2, "session_ids": ["a2", "b2"]},
        {"step": 3, "session_ids": ["c3"]},
    ]
    assert [file.name for file in path.parent.iterdir()] == ["trained.jsonl"]


def test_without_a_path_nothing_is_kept(tmp_path):
    log = TrainedLog(None)
    log.append(TrainedStep(1, ("a",)))
    log.cut_back(0)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_cut_back(tmp_path):
    TrainedLog(tmp_path / "trained.jsonl").cut_back(0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_step_was_made_of_comes_back_to_the_last_bit(tmp_path):
    log = TrainedLog(tmp_path / "trained.jsonl")
    whole = TrainedStep(
        7,
        ("a", "b"),
        left_out=("c",),
        attempts={"b": 2},
        oldest_version=3,
        num_tokens=17,
        loss=0.1 + 0.2,
        grad_norm=1e-45,
    )
    skipped = TrainedStep(8, ("d",))
    log.append(whole)
    log.append(skipped)
    assert list(log.steps()) == [whole, skipped]
    log.append(TrainedStep(9, ("e",), num_tokens=1, loss=float("nan"), grad_norm=float("inf")))
    assert list(log.steps())[2] == TrainedStep(9, ("e",), num_tokens=1)


def test_a_line_of_something_else_is_named(tmp_path):
    path = tmp_path / "trained.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"trained.jsonl is damaged: KeyError\('session_ids'\)"):
        list(TrainedLog(path).steps())
