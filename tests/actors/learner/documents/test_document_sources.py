"""The contract of every document source: it repeats itself by seed, never ends, and goes on at any place that was kept.
What is finite gives each document once an epoch, in another order, and keeps what it holds out to itself."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.actors.learner.documents import (
    Corpus,
    DocumentSource,
    GeneratedDocuments,
    HubDataset,
    JsonLines,
    Parquet,
    TextFiles,
    TokenDocument,
    TrajectoryDocuments,
    cursor_of,
)
from headrace.actors.tasks.number_sorting_corpus import NumberSortingCorpus

TEXTS = [f"text {n}" for n in range(60)]


def text_files(folder: Path, **settings: Any) -> DocumentSource:
    for number in range(3):
        (folder / f"{number}.txt").write_text("\n".join(TEXTS[number::3]))
    return TextFiles(paths=str(folder / "*.txt"), **settings)


def json_lines(folder: Path, **settings: Any) -> DocumentSource:
    for number in range(2):
        lines = [json.dumps({"body": text}) for text in TEXTS[number::2]]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return JsonLines(paths=str(folder / "*.jsonl"), field="body", **settings)


def parquet(folder: Path, **settings: Any) -> DocumentSource:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([{"text": text} for text in TEXTS])
    parquet.write_table(table, folder / "a.parquet", row_group_size=17)
    return Parquet(paths=str(folder / "a.parquet"), **settings)


def hub_dataset(folder: Path, **settings: Any) -> DocumentSource:
    datasets = pytest.importorskip("datasets")
    if not (folder / "saved").exists():
        datasets.Dataset.from_list([{"text": text} for text in TEXTS]).save_to_disk(folder / "saved")
    return HubDataset(name=str(folder / "saved"), **settings)


def trajectories(folder: Path, **settings: Any) -> DocumentSource:
    (folder / "trajectories").mkdir(exist_ok=True)
    lines = [
        json.dumps(
            {"session_id": f"s{n:03d}", "purpose": "train", "task_id": f"t{n}", "source": "x", "reward": 1.0,
             "ending": "done", "token_ids": [1, n], "loss_mask": [0, 1]}
        )
        for n in range(60)
    ]  # fmt: skip
    (folder / "trajectories" / "grader-0.jsonl").write_text("\n".join(lines) + "\n")
    return TrajectoryDocuments(run=str(folder), **settings)


def generated(folder: Path) -> DocumentSource:
    return GeneratedDocuments(make=lambda rng: str(rng.randint(0, 10**9)))


def number_sorting(folder: Path) -> DocumentSource:
    return NumberSortingCorpus(num_clean=5)


CORPORA = [text_files, json_lines, parquet, hub_dataset, trajectories]
SOURCES = [*CORPORA, generated, number_sorting]
Make = Callable[..., DocumentSource]


def plain(document: Any) -> Any:
    return document.token_ids.tolist() if isinstance(document, TokenDocument) else document


def take(documents: Any, num: int) -> list[Any]:
    return [plain(document) for document in itertools.islice(documents, num)]


@pytest.mark.parametrize("make", SOURCES)
def test_it_repeats_itself_by_seed_and_never_ends(tmp_path: Path, make: Make) -> None:
    source = make(tmp_path)
    assert take(source.documents(1), 200) == take(make(tmp_path).documents(1), 200)
    assert take(source.documents(1), 200) != take(source.documents(2), 200)
    assert len(take(source.documents(1), 200)) == 200


@pytest.mark.parametrize("make", SOURCES)
def test_a_place_that_was_kept_is_gone_on_from(tmp_path: Path, make: Make) -> None:
    """J127: five, save, resume, five: the ten of an uninterrupted run; a second resume too."""
    whole = take(cursor_of(make(tmp_path), 3), 190)
    for step in (1, 5, 37, 95):
        found: list[Any] = []
        state = None
        while len(found) < 190:
            cursor = cursor_of(make(tmp_path), 3)
            if state is not None:
                cursor.load_state_dict(json.loads(json.dumps(state)))
                assert cursor.state_dict() == state, "what was kept is what was consumed"
            found += take(cursor, min(step, 190 - len(found)))
            state = cursor.state_dict()
        assert found == whole


@pytest.mark.parametrize("make", CORPORA)
@pytest.mark.parametrize("buffer", [1, 7, 60, 1000])
def test_each_document_comes_once_an_epoch(tmp_path: Path, make: Make, buffer: int) -> None:
    source = make(tmp_path, shuffle_buffer=buffer, held_out_fraction=0.0)
    documents = [str(document) for document in take(source.documents(0), 240)]
    epochs = [documents[i : i + 60] for i in range(0, 240, 60)]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(set(epoch)) == 60 for epoch in epochs)
    if buffer > 1:
        assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("make", CORPORA)
def test_what_is_held_out_is_never_trained(tmp_path: Path, make: Make) -> None:
    source = make(tmp_path, held_out_fraction=0.3)
    assert isinstance(source, Corpus)
    held_out = [str(plain(document)) for document in source.held_out()]
    trained = {str(document) for document in take(source.documents(0), 300)}
    assert 5 < len(held_out) < 35
    assert len(trained) == 60 - len(held_out)
    assert not trained & set(held_out)
    again = make(tmp_path, held_out_fraction=0.3, shuffle_buffer=3)
    assert isinstance(again, Corpus)
    assert [str(plain(document)) for document in again.held_out()] == held_out, "whatever the order"
    other = make(tmp_path, held_out_fraction=0.3, held_out_seed=2)
    assert isinstance(other, Corpus)
    assert [str(plain(document)) for document in other.held_out()] != held_out


def test_copies_of_a_document_are_on_one_side(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    (tmp_path / "b.txt").write_text("\n".join(reversed(TEXTS)))
    source = TextFiles(paths=str(tmp_path / "*.txt"), held_out_fraction=0.3)
    held_out = Counter(source.held_out())
    assert set(held_out.values()) == {2}
    assert not set(held_out) & set(take(source.documents(0), 120))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "0.txt").write_text("new"),
        lambda folder: (folder / "3.txt").write_text("more"),
        lambda folder: (folder / "2.txt").unlink(),
        lambda folder: (folder / "1.txt").write_text((folder / "1.txt").read_text().replace("text 4", "text 5", 1)),
    ],
)
def test_a_changed_corpus_begins_anew_and_says_so(
    tmp_path: Path, change: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """J128: a place in another data set is no place in this one."""
    cursor = cursor_of(text_files(tmp_path), 0)
    take(cursor, 50)
    state = cursor.state_dict()
    change(tmp_path)
    source = TextFiles(paths=str(tmp_path / "*.txt"))
    resumed = cursor_of(source, 0)
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(state)
    assert "they begin anew" in caplog.text
    assert take(resumed, 100) == take(source.documents(0), 100)


def test_other_settings_of_the_order_begin_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cursor = cursor_of(text_files(tmp_path), 0)
    take(cursor, 10)
    for other, seed in ((text_files(tmp_path, shuffle_buffer=3), 0), (text_files(tmp_path), 1)):
        resumed = cursor_of(other, seed)
        resumed.load_state_dict(cursor.state_dict())
        assert take(resumed, 5) == take(other.documents(seed), 5)
    assert caplog.text.count("they begin anew") == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any),
    buffer=st.integers(1, 40),
    fraction=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 5),
    steps=st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_any_files_any_buffer_any_places(
    tmp_path_factory: pytest.TempPathFactory, files: list[int], buffer: int, fraction: float, seed: int,
    steps: list[int]
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("files")
    for number, size in enumerate(files):
        (folder / f"{number}.txt").write_text("".join(f"{number}/{i}\n" for i in range(size)))

    def make() -> TextFiles:
        return TextFiles(paths=str(folder / "*.txt"), shuffle_buffer=buffer, held_out_fraction=fraction)

    num = sum(files) - len(list(make().held_out()))
    if num == 0:
        with pytest.raises(ValueError, match="holds no document"):
            next(make().documents(seed))
        return
    whole = take(make().documents(seed), sum(steps))
    for start in range(0, len(whole) - num + 1, num):
        assert len(set(whole[start : start + num])) == num
    found: list[str] = []
    state = make().documents(seed).state_dict()
    for step in steps:
        cursor = make().documents(seed)
        cursor.load_state_dict(json.loads(json.dumps(state)))
        found += take(cursor, step)
        state = cursor.state_dict()
    assert found == whole


def test_only_a_buffer_is_in_memory(tmp_path: Path) -> None:
    """A record is read when its block is: the first document of a corpus costs one buffer."""
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(10_000)))
    source = TextFiles(paths=str(tmp_path / "a.txt"), shuffle_buffer=50)
    read = []
    inner = source.records.read

    def counted(part: str, position: int = 0) -> Any:
        for record, end in inner(part, position):
            read.append(record)
            yield record, end

    source.records.read = counted  # type: ignore[method-assign]
    next(documents := source.documents(0))
    assert len(read) == 50
    take(documents, 100)
    assert len(read) <= 200


def test_conversations_are_whole_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}], "id": 3}\n')
    source = JsonLines(paths=str(tmp_path / "a.jsonl"), field=None, held_out_fraction=0.0)
    assert next(source.documents(0)) == {"messages": [{"role": "user", "content": "hi"}], "id": 3}


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": 3}\n')
    with pytest.raises(ValueError, match=r"no string under 'text'; it has \['body'\]; set documents.field"):
        next(JsonLines(paths=str(tmp_path / "a.jsonl")).documents(0))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="epoch of 0 records holds no document"):
        next(TextFiles(paths=str(tmp_path / "empty.txt")).documents(0))
    with pytest.raises(ValueError, match="no such file"):
        next(TextFiles(paths=str(tmp_path / "missing.txt")).documents(0))
    with pytest.raises(ValueError, match="shuffle_buffer must be >= 1"):
        TextFiles(paths="x", shuffle_buffer=0)
    with pytest.raises(ValueError, match=r"held_out_fraction must be in \[0, 1\)"):
        TextFiles(paths="x", held_out_fraction=1.0)
    with pytest.raises(ValueError, match="must be callable"):
        GeneratedDocuments(make="text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="state of another kind"):
        cursor_of(generated(tmp_path), 0).load_state_dict({"epoch": 3})


def test_token_documents_keep_their_types(tmp_path: Path) -> None:
    document = next(iter(trajectories(tmp_path).documents(0)))
    assert isinstance(document, TokenDocument)
    assert (document.token_ids.dtype, document.loss_mask.dtype) == (np.int32, np.bool_)
