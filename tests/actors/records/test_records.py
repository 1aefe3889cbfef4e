"""Every kind of records: in order, from any position on, a fingerprint that sees changes; errors name the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.records import HubRecords, JsonLinesRecords, ParquetRecords, Records, TextRecords
from headrace.actors.records.delimited import _CHUNK_BYTES

ROWS = [{"text": f"document {n} " + "é" * (n % 5), "n": n} for n in range(1000)]


def text_records(folder: Path, rows: list[dict[str, Any]]) -> tuple[Records, list[Any]]:
    (folder / "a.txt").write_text("\n".join(row["text"] for row in rows), encoding="utf-8")
    return TextRecords(str(folder / "*.txt")), [row["text"] for row in rows]


def json_lines_records(folder: Path, rows: list[dict[str, Any]]) -> tuple[Records, list[Any]]:
    (folder / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return JsonLinesRecords([str(folder / "a.jsonl")]), rows


def parquet_records(folder: Path, rows: list[dict[str, Any]]) -> tuple[Records, list[Any]]:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet", row_group_size=300)
    return ParquetRecords(str(folder / "a.parquet")), rows


def saved_dataset_records(folder: Path, rows: list[dict[str, Any]]) -> tuple[Records, list[Any]]:
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(folder / "saved")
    return HubRecords(str(folder / "saved")), rows


def dataset_folder_records(folder: Path, rows: list[dict[str, Any]]) -> tuple[Records, list[Any]]:
    pytest.importorskip("datasets")
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HubRecords(str(folder / "data")), rows


Make = Callable[[Path, list[dict[str, Any]]], tuple[Records, list[Any]]]
KINDS = [text_records, json_lines_records, parquet_records, saved_dataset_records, dataset_folder_records]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of the hub, and the cache of data sets is the test's own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("make", KINDS)
def test_from_any_position_on_come_the_records_that_are_left(tmp_path: Path, make: Make) -> None:
    records, expected = make(tmp_path, ROWS)
    (part,) = records.parts()
    found = list(records.read(part))
    assert [record for record, _ in found] == expected
    for number in (0, 1, 298, 299, 300, 301, 511, 998, 999):
        assert [record for record, _ in records.read(part, found[number][1])] == expected[number + 1 :]


@pytest.mark.parametrize("make", KINDS)
def test_the_fingerprint_is_that_of_the_content(tmp_path: Path, make: Make) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    one, two = (make(folder, ROWS)[0].fingerprint() for folder in folders[:2])
    changed = make(folders[2], [*ROWS, {"text": "one more", "n": 1000}])[0].fingerprint()
    assert one == two, "the same wherever it lies"
    assert changed != one


def test_pieces_that_straddle_chunks_and_long_separators(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    texts = ["x" * (_CHUNK_BYTES - 3), "y" * 5, "", "z" * (2 * _CHUNK_BYTES)]
    path.write_text("<sep>".join(texts))
    found = list(TextRecords(str(path), separator="<sep>").read(str(path)))
    assert [text for text, _ in found] == [texts[0], texts[1], texts[3]]
    assert list(TextRecords(str(path), separator="<sep>").read(str(path), found[0][1])) == found[1:]


def test_several_files_and_globs_are_sorted_and_read_once(tmp_path: Path) -> None:
    for name in ("b", "a", "c[1]"):
        (tmp_path / f"{name}.txt").write_text(name)
    records = TextRecords([str(tmp_path / "*.txt"), str(tmp_path / "a.txt"), str(tmp_path / "c[1].txt")])
    assert [Path(part).name for part in records.parts()] == ["a.txt", "b.txt", "c[1].txt"]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n\n[1]\n')
    with pytest.raises(ValueError, match=r"x\.jsonl, line 3 must be a JSON object"):
        list(JsonLinesRecords(str(path)).read(str(path)))
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2 is no JSON"):
        list(JsonLinesRecords(str(path)).read(str(path)))
    path.write_bytes(b"ok\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2 is not UTF-8"):
        list(TextRecords(str(path)).read(str(path)))
    with pytest.raises(ValueError, match="no such file"):
        TextRecords(str(tmp_path / "none*.txt")).parts()
    with pytest.raises(ValueError, match="separator must not be empty"):
        TextRecords(str(path), separator="")
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        list(ParquetRecords(str(path)).read(str(path)))
    parquet_records(tmp_path, ROWS[:3])
    with pytest.raises(ValueError, match=r"has no column body; it has \['text', 'n'\]"):
        list(ParquetRecords(str(tmp_path / "a.parquet"), columns=["body"]).read(str(tmp_path / "a.parquet")))
    saved_dataset_records(tmp_path, ROWS[:3])
    with pytest.raises(ValueError, match="has no split 'test'; it has train"):
        HubRecords(str(tmp_path / "saved"), split="test").fingerprint()
