"""Tasks from records of every kind: one contract."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.dispatcher.sources import JsonLinesSource, RecordSource
from headrace.actors.records import HubRecords, JsonLinesRecords, ParquetRecords, PythonRecords, Records


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
        ("{", {}, "line 1 is no JSON"),
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


ROWS = [
    {"prompt": f"what is {n} + 1?", "answer": f"{n} and one make #### {n + 1}", "kind": "ab"[n % 2]} for n in range(9)
]


def rows(num: int) -> list[dict[str, Any]]:
    return ROWS[:num]


@pytest.fixture(params=["json lines", "parquet", "hub", "python"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Records:
    """The same nine problems."""
    if request.param == "json lines":
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:4]))
        (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[4:]))
        return JsonLinesRecords(str(tmp_path / "*.jsonl"))
    if request.param == "python":
        return PythonRecords(functools.partial(rows, 9))
    if request.param == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "all.parquet", row_group_size=4)
        return ParquetRecords(str(tmp_path / "all.parquet"))
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    return HubRecords(str(tmp_path / "saved"))


def test_every_kind_gives_the_same_tasks(records: Records) -> None:
    source = RecordSource(records=records, answer_after="####", class_field="kind", held_out_size=2)
    held_out = source.held_out(2)
    epoch = [source.task(index) for index in range(7)]
    assert {task.prompt[0].content for task in [*epoch, *held_out]} == {row["prompt"] for row in ROWS}
    assert all(task.answer == str(int(task.prompt[0].content.split()[2]) + 1) for task in epoch)
    assert {task.source for task in epoch} == {"a", "b"}
    assert sorted(task.task_id for task in epoch) == sorted(source.task(index).task_id for index in range(7, 14))
    assert (
        source.fingerprint()
        == RecordSource(records=records, answer_after="####", class_field="kind", held_out_size=2).fingerprint()
    )
    assert source.fingerprint() != RecordSource(records=records, class_field="kind", held_out_size=2).fingerprint()


def test_what_a_function_gives_wrongly_is_named() -> None:
    source = RecordSource(records=PythonRecords(lambda: [{"prompt": "a", "answer": "b"}, ("c", "d")]))
    with pytest.raises(ValueError, match=r"<lambda>, record 2 has no field 'prompt'; it has \('c', 'd'\)"):
        source.task(0)
    marked = RecordSource(records=PythonRecords(lambda: [{"prompt": "a", "answer": "b"}]), answer_after="####")
    with pytest.raises(ValueError, match="its answer has no '####', got 'b'"):
        marked.task(0)
    with pytest.raises(ValueError, match="answer_after must be a mark in the answer_field"):
        RecordSource(records=PythonRecords(lambda: []), answer_field=None, answer_after="####")
