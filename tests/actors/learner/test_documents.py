"""Document sources repeat themselves by seed, never end, and say what is wrong with a file."""

from __future__ import annotations

import itertools

import pytest

from headrace.actors.learner.documents import GeneratedDocuments, JsonLines, TextFile


def take(source, seed, num=10):
    return list(itertools.islice(source.documents(seed), num))


def test_generated_documents_repeat_by_seed():
    source = GeneratedDocuments(make=lambda rng: str(rng.randint(0, 10**9)))
    assert take(source, 1) == take(source, 1)
    assert take(source, 1) != take(source, 2)
    assert len(set(take(source, 1))) == 10


def test_a_file_is_shuffled_anew_each_epoch(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("a\nb\n\nc\nd\n")
    texts = take(TextFile(path=str(path)), 0, 12)
    epochs = [texts[i : i + 4] for i in (0, 4, 8)]
    assert all(sorted(epoch) == ["a", "b", "c", "d"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_json_lines(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"body": "one"}\n\n{"body": "two"}\n')
    assert sorted(take(JsonLines(path=str(path), field="body"), 0, 2)) == ["one", "two"]
    with pytest.raises(ValueError, match=r"line 1: no string under 'text'"):
        take(JsonLines(path=str(path)), 0)


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"documents\.path"):
        take(TextFile(path=str(tmp_path / "absent")), 0)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="holds no text"):
        take(TextFile(path=str(tmp_path / "empty")), 0)
    (tmp_path / "bad").write_text("{")
    with pytest.raises(ValueError, match="line 1: not JSON"):
        take(JsonLines(path=str(tmp_path / "bad")), 0)
