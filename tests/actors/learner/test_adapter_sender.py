"""What leaves the learner of a LoRA run: adapters, and their base once, through real shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.actors.learner.adapter_sender import AdapterSender
from headrace.transport.weights import Adapter, Manifest, SenderSettings, open_weights

BASE = {"layer.weight": torch.arange(4096.0).reshape(64, 64)}
FACTORS = {
    "base_model.model.layer.lora_A.weight": torch.ones(2, 64),
    "base_model.model.layer.lora_B.weight": torch.zeros(64, 2),
}


class Source:
    def __init__(self, base: dict[str, torch.Tensor] | None) -> None:
        self.base = base
        self.num_asked = 0

    def base_tensors(self) -> dict[str, torch.Tensor] | None:
        self.num_asked += 1
        return self.base

    def adapter(self, base: Manifest | None) -> Adapter:
        return Adapter(2, 4.0, ("layer",), base)


@pytest.fixture
def source() -> Source:
    return Source(BASE)


@pytest.fixture
def sender(source: Source, tmp_path: Path) -> Iterator[AdapterSender]:
    sender = AdapterSender("shm", SenderSettings(run_id=f"test-{tmp_path.name}", num_buffers=2), source)
    yield sender
    sender.close()


def send(sender: AdapterSender, version: int) -> Manifest:
    staged = sender.stage(FACTORS, version=version, step=10 * version)
    assert staged is not None
    assert (staged.version, staged.step) == (version, 10 * version)
    return staged.seal()


def test_the_base_travels_once_and_each_version_says_upon_what_it_goes(sender: AdapterSender, source: Source) -> None:
    manifests = []
    for version in (1, 2, 3):
        manifests.append(send(sender, version))
        sender.release(version - 1)
    bases = [manifest.adapter.base for manifest in manifests if manifest.adapter is not None]
    assert len({base.location for base in bases if base is not None}) == 1
    assert bases[0] is bases[1] is bases[2]
    assert source.num_asked == 1
    assert {manifest.nbytes for manifest in manifests} == {2 * 64 * 2 * 4}, "the factors, float32, and nothing else"
    assert manifests[0].names == FACTORS.keys()
    assert bases[0] is not None
    near = open_weights(bases[0])
    near.verify()
    assert torch.equal(dict(near.tensors())["layer.weight"], BASE["layer.weight"]), "who comes late finds it still"
    near.close()


def test_a_base_that_the_model_folder_holds_does_not_travel(tmp_path: Path) -> None:
    sender = AdapterSender("shm", SenderSettings(run_id=f"test-{tmp_path.name}"), Source(None))
    manifest = send(sender, 1)
    assert manifest.adapter == Adapter(2, 4.0, ("layer",), None)
    sender.close()


def test_where_no_buffer_is_free_nothing_is_staged(sender: AdapterSender) -> None:
    first, second = send(sender, 1), send(sender, 2)
    assert sender.stage(FACTORS, version=3, step=3) is None
    sender.release(first.version)
    assert send(sender, 4).adapter == second.adapter


def test_closing_leaves_nothing(sender: AdapterSender) -> None:
    manifest = send(sender, 1)
    assert manifest.adapter is not None
    assert manifest.adapter.base is not None
    places = [Path(manifest.location), Path(manifest.adapter.base.location)]
    assert all(place.exists() for place in places)
    sender.close()
    assert not any(place.exists() for place in places)
