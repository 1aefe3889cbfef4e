"""Tasks from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.dispatcher.sources import JsonLinesSource


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"what is {n % 15} + 1?", "answer": n % 15 + 1, "level": n} for n in range(20)]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def test_each_epoch_holds_every_training_line_once(problems: Path) -> None:
    source = JsonLinesSource(path=str(problems), held_out_size=3)
    size = 20 - sum(
        sum(f'"{task.prompt[0].content}"' in line for line in problems.read_text().splitlines())
        for task in source.held_out(3)
    )
    epochs = [[source.task(size * epoch + place).task_id for place in range(size)] for epoch in range(3)]
    assert len(set(epochs[0])) == size
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1]
    again = JsonLinesSource(path=str(problems), held_out_size=3)
    assert again.task(2 * size).task_id == epochs[2][0]


def test_prompts_are_on_one_side(problems: Path) -> None:
    source = JsonLinesSource(path=str(problems), held_out_size=5, system="be brief")
    held_out = {task.prompt for task in source.held_out(5)}
    assert len(held_out) == 5
    assert not held_out & {source.task(index).prompt for index in range(60)}
    task = source.task(0)
    assert [message.role for message in task.prompt] == ["system", "user"]
    assert set(task.entry) == {"level"}
    assert task.answer is not None


def test_chat_prompts_and_no_answers(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"chat": [{"role": "user", "content": "hi"}]}))
    source = JsonLinesSource(path=str(path), prompt_field="chat", answer_field=None)
    assert source.task(7).prompt[0].content == "hi"
    assert source.task(7).answer is None


def test_a_whole_file_may_be_held_out_for_an_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "answer": i}) + "\n" for i in range(5)))
    source = JsonLinesSource(path=str(path), held_out_size=5)
    assert sorted(task.answer or "" for task in source.held_out(5)) == ["0", "1", "2", "3", "4"]
    with pytest.raises(ValueError, match="held_out_size=5 leaves none to train on"):
        source.task(0)
    with pytest.raises(ValueError, match="5 distinct prompts, and held_out_size=6 asks for more"):
        JsonLinesSource(path=str(path), held_out_size=6).held_out(6)


@pytest.mark.parametrize(
    ("text", "settings", "complaint"),
    [
        ("{", {}, r":1 is no JSON"),
        ('{"answer": 1}', {}, r"no field 'prompt'; it has \['answer'\]"),
        ('{"prompt": 3, "answer": 1}', {}, "a prompt is a text or a list"),
        ('{"prompt": "a", "answer": 1}', {"held_out_size": 1}, "leaves none to train on"),
        ("", {}, "0 distinct prompts"),
    ],
)
def test_bad_files_are_named(text: str, settings: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        JsonLinesSource(path=str(path), **settings).task(0)


def test_the_fingerprint_covers_the_content(problems: Path) -> None:
    before = JsonLinesSource(path=str(problems)).fingerprint()
    assert before == JsonLinesSource(path=str(problems)).fingerprint()
    assert before != JsonLinesSource(path=str(problems), seed=1).fingerprint()
    problems.write_text(problems.read_text() + json.dumps({"prompt": "new", "answer": 0}) + "\n")
    assert before != JsonLinesSource(path=str(problems)).fingerprint()
