"""Folders that strangers load, whole or not at all; what a killed writer leaves; what is kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from headrace.transport.weights import Manifest, SenderSettings, WeightsMismatch, open_weights
from headrace.transport.weights.checkpoint import CheckpointSender
from headrace.transport.weights.layout import model_tensors

torch.set_num_threads(1)


def llama(seed: int, *, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def sender_of(folder: Path, **options: Any) -> CheckpointSender:
    model_folder = options.pop("model_folder", None)
    return CheckpointSender(
        SenderSettings(run_id="test", folder=folder / "weights", model_folder=model_folder), **options
    )


def publish(sender: CheckpointSender, tensors: dict[str, torch.Tensor], version: int, **options: Any) -> Manifest:
    staged = sender.stage(tensors, version=version, step=version, **options)
    assert staged is not None
    return staged.seal()


def small(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((3, 5), value), "b": torch.full((7,), value)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "weights").iterdir())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_bytes", [5 << 30, 10_000])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_plain_transformers_loads_it(tmp_path: Path, tied: bool, shard_bytes: int, dtype: str | None) -> None:
    """Weights of another seed than those of the model folder, whose tokenizer and config come along."""
    llama(1, tied=tied).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text('{"of": "the model"}')
    model = llama(2, tied=tied)
    sender = sender_of(tmp_path, model_folder=tmp_path / "model", max_shard_bytes=shard_bytes)
    manifest = publish(sender, model_tensors(model), 3, dtype=dtype)
    folder = Path(manifest.location)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    sent = torch.float32 if dtype is None else torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.to(sent)), name
    assert loaded.dtype == sent
    assert (folder / "tokenizer.json").read_text() == '{"of": "the model"}'
    files = sorted(folder.glob("*.safetensors"))
    if shard_bytes > 10_000:
        assert [file.name for file in files] == ["model.safetensors"]
    else:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert {file.name for file in files} == set(index["weight_map"].values())
        assert set(index["weight_map"]) == {spec.name for spec in manifest.tensors}, "tied weights are there once"
        assert all(file.stat().st_size < 12_000 for file in files)
    receiver = open_weights(manifest)
    receiver.verify()
    assert {name for name, _ in receiver.tensors(include_tied=True)} == set(model_tensors(model))


def test_who_has_mapped_a_version_keeps_it(tmp_path: Path) -> None:
    sender = sender_of(tmp_path)
    receiver = open_weights(first := publish(sender, small(1), 1))
    sender.release(1)
    publish(sender, small(2), 2)
    receiver.verify()
    receiver.check_unchanged()
    assert float(dict(receiver.tensors())["a"].sum()) == 15.0
    with pytest.raises(WeightsMismatch, match=r"cannot be read .* until the version is released"):
        open_weights(first)
    assert names(tmp_path) == ["version-000002"], "the bytes of what was released go with the next write"


def test_a_full_disk_leaves_nothing_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    sender = sender_of(tmp_path)
    publish(sender, small(1), 1)

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of it")
        raise safetensors.SafetensorError("Error while serializing: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(OSError, match=r"version-000002 \(.*No space left.*make room there, or set weights=shm"):
        publish(sender, small(2), 2)
    assert names(tmp_path) == ["version-000001"]


KILLED = """
import os, signal, sys
from pathlib import Path
import safetensors.torch, torch
from headrace.transport.weights import SenderSettings
from headrace.transport.weights.checkpoint import CheckpointSender

sender = CheckpointSender(SenderSettings(run_id="test", folder=Path(sys.argv[1]), num_buffers=9))
save = safetensors.torch.save_file

def publish(version):
    sender.stage({"a": torch.full((3, 5), float(version))}, version=version, step=version).seal()

def half(tensors, path, metadata):
    save(tensors, path, metadata)
    os.truncate(path, 50)
    os.kill(os.getpid(), signal.SIGKILL)

publish(9), publish(10)
safetensors.torch.save_file = half
publish(11)
"""


def test_what_a_killed_writer_left(tmp_path: Path) -> None:
    """Nobody finds the version that it was writing; its successor keeps the newest, until that is released."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "notes").write_text("somebody else's")
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "weights"], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    left = names(tmp_path)
    assert left[0].startswith(".partial-")
    assert left[1:] == ["notes", "version-000009", "version-000010"]
    sender = sender_of(tmp_path)
    publish(sender, small(1), 12)
    assert names(tmp_path) == ["notes", "version-000010", "version-000012"]
    sender.release(10)
    publish(sender, small(1), 13)
    assert names(tmp_path) == ["notes", "version-000012", "version-000013"]


def test_the_newest_stays_at_the_end(tmp_path: Path) -> None:
    sender = sender_of(tmp_path)
    publish(sender, small(1), 1)
    newest = publish(sender, small(2), 2)
    sender.close()
    sender.close()
    assert names(tmp_path) == ["version-000002"]
    open_weights(newest).verify()


def test_it_needs_a_folder() -> None:
    with pytest.raises(ValueError, match=r"weights.transport=checkpoint needs a folder to write to, got none"):
        CheckpointSender(SenderSettings(run_id="test"))


def test_a_file_that_is_not_the_manifests_is_named(tmp_path: Path) -> None:
    manifest = publish(sender_of(tmp_path), small(1), 1)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(5, 3)}, Path(manifest.location) / "model.safetensors")
    with pytest.raises(WeightsMismatch, match=r"a: torch.float32\[5, 3\] there; b: nothing there"):
        open_weights(manifest)


def test_buckets_that_cut_tensors_and_gaps(tmp_path: Path) -> None:
    """The checksums are those of the flat buffer with zeros in its gaps, whatever lay there before."""
    from headrace.transport.weights.checksum import checksums
    from headrace.transport.weights.layout import build_layout, flatten_into

    tensors = {"a": torch.randn(5), "b": torch.ones(1, dtype=torch.uint8), "e": torch.empty(0), "c": torch.randn(77)}
    tensors["f"] = torch.empty(3, 0)
    layout = build_layout(tensors, bucket_bytes=70)
    flat = torch.zeros(layout.nbytes, dtype=torch.uint8)
    flatten_into(flat, tensors, layout)
    sender = CheckpointSender(SenderSettings(run_id="test", folder=tmp_path / "weights", bucket_bytes=70))
    manifest = publish(sender, tensors, 1)
    found = tuple(bucket.checksum for bucket in manifest.buckets)
    assert found == checksums(memoryview(flat.numpy()), layout.bounds)
