"""Shared-memory segments: latest only, reuse, corruption, leftovers, and readers that were too slow."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headrace.transport.weights import Manifest, SenderSettings, WeightsMismatch, make_sender, open_weights
from headrace.transport.weights.shm import HEADER_BYTES, ShmReader, ShmWriter

torch.set_num_threads(1)


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((5, 3), value), "b": torch.full((7,), value, dtype=torch.bfloat16)}


def stage(writer: ShmWriter, version: int) -> Manifest:
    staged = writer.stage(weights(version), version=version, step=10 * version)
    assert staged is not None
    return staged.seal()


def read(manifest: Manifest) -> dict[str, torch.Tensor]:
    reader = ShmReader(manifest)
    reader.verify()
    try:
        return reader.copies()
    finally:
        reader.close()


def corrupt(manifest: Manifest, offset: int) -> None:
    with open(manifest.location, "r+b") as file:
        file.seek(HEADER_BYTES + offset)
        byte = file.read(1)[0]
        file.seek(HEADER_BYTES + offset)
        file.write(bytes([byte ^ 1]))


def test_what_was_staged_is_what_is_read(tmp_path: Path) -> None:
    """cases E85: lightseekorg/tokenspeed#1373. The bytes are the proof, not the answer."""
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    first, second = stage(writer, 1), stage(writer, 2)
    for manifest in (first, second):
        found = read(manifest)
        assert all(torch.equal(found[name], tensor) for name, tensor in weights(manifest.version).items())
    assert [bucket.checksum for bucket in first.buckets] != [bucket.checksum for bucket in second.buckets]
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_latest_only_and_buffers_are_reused(tmp_path: Path) -> None:
    """cases E91: PrimeIntellect-ai/prime-rl#1857. Nothing queues; a buffer is free only once it was released."""
    writer = ShmWriter(SenderSettings(run_id="r", num_buffers=2), directory=tmp_path)
    first = stage(writer, 1)
    stage(writer, 2)
    assert writer.num_free == 0
    assert writer.stage(weights(3), version=3, step=30) is None
    assert torch.equal(read(first)["a"], weights(1)["a"])
    writer.release(1)
    writer.release(99)
    third = stage(writer, 3)
    assert third.location == first.location
    assert len(list(tmp_path.iterdir())) == 2
    writer.close()


def test_a_reader_that_was_too_slow_learns_it(tmp_path: Path) -> None:
    writer = ShmWriter(SenderSettings(run_id="r", num_buffers=1), directory=tmp_path)
    reader = ShmReader(stage(writer, 1))
    reader.verify()
    reader.check_unchanged()
    writer.release(1)
    stage(writer, 2)
    with pytest.raises(WeightsMismatch, match="holds version 2, not version 1"):
        reader.check_unchanged()
    writer.close()


@pytest.mark.parametrize("offset", [0, 59, 64, 77])
def test_one_flipped_bit_is_found(tmp_path: Path, offset: int) -> None:
    writer = ShmWriter(SenderSettings(run_id="r", bucket_bytes=64), directory=tmp_path)
    manifest = stage(writer, 1)
    corrupt(manifest, offset)
    with pytest.raises(WeightsMismatch, match=rf"bucket {offset // 64} "):
        ShmReader(manifest).verify()
    writer.close()


def test_readers_cannot_change_a_segment(tmp_path: Path) -> None:
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    manifest = stage(writer, 1)
    reader = ShmReader(manifest)
    for _, tensor in reader.tensors():
        tensor.zero_()
    assert torch.equal(read(manifest)["a"], weights(1)["a"])
    writer.close()


def test_views_outlive_the_reader_and_the_writer(tmp_path: Path) -> None:
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    reader = ShmReader(stage(writer, 1))
    views = dict(reader.tensors())
    reader.close()
    reader.close()
    writer.close()
    writer.close()
    assert torch.equal(views["a"], weights(1)["a"])
    with pytest.raises(ValueError, match="closed"):
        reader.verify()


def test_a_larger_model_gets_a_larger_segment(tmp_path: Path) -> None:
    writer = ShmWriter(SenderSettings(run_id="r", num_buffers=1), directory=tmp_path)
    stage(writer, 1)
    writer.release(1)
    big = {"a": torch.randn(5000)}
    staged = writer.stage(big, version=2, step=2)
    assert staged is not None
    assert torch.equal(read(staged.seal())["a"], big["a"])
    assert len(list(tmp_path.iterdir())) == 1
    writer.close()


@pytest.mark.parametrize("how", ["removed", "replaced", "cut"])
def test_a_segment_that_somebody_took_away_is_made_again(tmp_path: Path, how: str) -> None:
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    lost = Path(stage(writer, 1).location)
    writer.release(1)
    if how == "cut":
        os.truncate(lost, 100)
    else:
        lost.unlink()
    if how == "replaced":
        lost.write_bytes(bytes(1 << 20))
    manifest = stage(writer, 2)
    assert manifest.location != str(lost)
    assert torch.equal(read(manifest)["a"], weights(2)["a"])
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_versions_only_rise(tmp_path: Path) -> None:
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    stage(writer, 4)
    with pytest.raises(ValueError, match=r"above the last one staged \(4\), got 4"):
        stage(writer, 4)
    writer.close()


def test_leftovers_of_this_run_only_are_removed(tmp_path: Path) -> None:
    def writer_of(run_id: str) -> ShmWriter:
        return ShmWriter(SenderSettings(run_id=run_id, num_buffers=1), directory=tmp_path)

    stage(writer_of("run"), 1)
    kept = {stage(writer_of(run_id), 1).location for run_id in ("run2", "run-weights-00000000-0", "ru")}
    own = {stage(writer_of("run"), 1).location}
    assert {str(path) for path in tmp_path.iterdir()} == kept | own


def test_the_first_version_finds_out_whether_all_buffers_have_room(tmp_path: Path) -> None:
    """Not a later one, in mid-run."""
    writer = ShmWriter(SenderSettings(run_id="r", num_buffers=3), directory=tmp_path)
    stage(writer, 1)
    assert len(list(tmp_path.iterdir())) == 3
    writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run_id", ["", ".", "..", "../etc", "-rf", "_x", "a" * 101, "a/b", "a b"])
def test_a_name_that_cannot_be_one_of_files_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="run_id must be a letter or digit"):
        ShmWriter(SenderSettings(run_id=run_id), directory=tmp_path)


def test_a_segment_that_is_gone_or_short_is_a_mismatch(tmp_path: Path) -> None:
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    manifest = stage(writer, 1)
    with pytest.raises(WeightsMismatch, match="shorter than its manifest"):
        ShmReader(replace(manifest, nbytes=10**6))
    writer.close()
    with pytest.raises(WeightsMismatch, match="is gone"):
        ShmReader(manifest)


def test_a_readers_exit_leaves_the_segment(tmp_path: Path) -> None:
    """messaging.md 15: cpython#82300, an attacher's exit unlinks a multiprocessing segment. Ours stays."""
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    manifest = stage(writer, 2)
    script = "import sys, mmap; f = open(sys.argv[1], 'rb');mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)[4096]"
    subprocess.run([sys.executable, "-c", script, manifest.location], check=True)
    assert torch.equal(read(manifest)["a"], weights(2)["a"])
    writer.close()


def test_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'carrier-pigeon' is unknown; there are .*shm"):
        make_sender("carrier-pigeon", SenderSettings(run_id="r"))
    with pytest.raises(ValueError, match="run_id"):
        make_sender("shm", SenderSettings(run_id="../etc"))
    writer = ShmWriter(SenderSettings(run_id="r"), directory=tmp_path)
    receiver = open_weights(stage(writer, 1))
    receiver.verify()
    assert [name for name, _ in receiver.tensors()] == ["a", "b"]
    writer.close()


def test_the_package_imports_no_torch() -> None:
    script = "import sys, headrace.transport.weights; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
