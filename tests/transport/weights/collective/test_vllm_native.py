"""Rank 0 against vLLM's own receiving code, which runs here over shared memory in place of NCCL: same bytes, in order.

Its CUDA streams are taken away; what it broadcasts, when, and how it cuts and names it, is vLLM's."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from groups import LONG_S, Group, joined

from headrace.transport.weights import Manifest
from headrace.transport.weights.checksum import checksums
from headrace.transport.weights.collective.communicator import Communicator
from headrace.transport.weights.collective.vllm_native import broadcast, chunks, warm_up
from headrace.transport.weights.layout import DTYPES, build_layout, flatten_into

T = TypeVar("T")
TENSORS = {
    "embed": torch.randn(40, 16).bfloat16(),
    "scalars": torch.tensor([2.5, -0.0]),
    "bytes": torch.arange(8, dtype=torch.uint8),
    "wide": torch.randn(300, 8),
    "norm": torch.randn(5, dtype=torch.float64),
    "head": torch.randn(16, 3).t(),
}


class VllmsGroup:
    """What vLLM calls PyNcclCommunicator for."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.sizes: list[int] = []

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        assert src == 0
        flat = tensor.view(-1).view(torch.uint8)
        self.sizes.append(flat.numel())
        self.communicator.broadcast(flat).wait(time.monotonic() + LONG_S)


class _Stream:
    def synchronize(self) -> None:
        """What was broadcast is there when `broadcast` returns."""


def staged() -> tuple[Manifest, torch.Tensor]:
    layout = build_layout(TENSORS, bucket_bytes=1024)
    buffer = torch.full((layout.nbytes,), 0xAA, dtype=torch.uint8)  # gaps would be seen
    flatten_into(buffer, TENSORS, layout)
    sums = checksums(buffer.numpy().data, layout.bounds)
    return layout.manifest(version=1, step=1, transport="nccl", location="", checksums=sums), buffer


@pytest.fixture
def group() -> Iterator[Group]:
    with ThreadPoolExecutor(3) as pool:
        group = joined("memory", pool)
        yield group
        group.close()


def declared(manifest: Manifest) -> list[tuple[str, tuple[list[int], torch.dtype]]]:
    """As an HTTP client declares it: NCCLWeightTransferUpdateInfo."""
    return [(spec.name, (list(spec.shape), DTYPES[spec.dtype])) for spec in manifest.tensors]


def assert_same(found: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def sent_to_all(
    group: Group, receive: Callable[[Communicator], T], manifest: Manifest, buffer: torch.Tensor, **how: Any
) -> list[T]:
    """What each of the other ranks received of rank 0's warm-up and broadcast."""
    with ThreadPoolExecutor(2) as pool:
        receiving = [pool.submit(receive, communicator) for communicator in group.ranks[1:]]
        warm_up(group.ranks[0], timeout_s=LONG_S)
        broadcast(group.ranks[0], manifest, buffer, timeout_s=LONG_S, **how)
        return [future.result(timeout=LONG_S) for future in receiving]


@pytest.mark.vllm
@pytest.mark.parametrize("chunk_bytes", [1, 1280, 1300, 4000, 1 << 30])
def test_packed_into_vllms_own_consumer(group: Group, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    packed_tensor = pytest.importorskip("vllm.distributed.weight_transfer.packed_tensor")
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, num_buffers: (_Stream(),) * num_buffers)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    manifest, buffer = staged()

    def consume(communicator: Communicator) -> tuple[dict[str, torch.Tensor], list[int]]:
        found: dict[str, torch.Tensor] = {}
        vllms = VllmsGroup(communicator)
        vllms.broadcast(torch.zeros(4, dtype=torch.uint8), src=0)  # in place of its all-reduce
        packed_tensor.packed_nccl_broadcast_consumer(
            iterator=iter(declared(manifest)), group=vllms, src=0, post_unpack_func=found.update,
            buffer_size_bytes=chunk_bytes, num_buffers=2, device="cpu",
        )  # fmt: skip
        return found, vllms.sizes[1:]

    for found, sizes in sent_to_all(group, consume, manifest, buffer, packed=True, chunk_bytes=chunk_bytes):
        assert_same(found)
        assert sizes == [sum(spec.nbytes for spec in chunk) for chunk in chunks(manifest, chunk_bytes)]


@pytest.mark.vllm
def test_unpacked_into_vllms_own_engine(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server of somebody else's runs at /update_weights, with what it is told there."""
    nccl = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    manifest, buffer = staged()

    class Model:
        def __init__(self) -> None:
            self.found: dict[str, torch.Tensor] = {}

        def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
            self.found.update((name, tensor.clone()) for name, tensor in weights)

    def receive(communicator: Communicator) -> dict[str, torch.Tensor]:
        engine = object.__new__(nccl.NCCLWeightTransferEngine)
        engine.packed, engine.device, engine.model = False, torch.device("cpu"), Model()
        engine.model_update_group = VllmsGroup(communicator)
        communicator.all_reduce_one(time.monotonic() + LONG_S)
        names, pairs = zip(*declared(manifest), strict=True)
        told = {
            "names": list(names),
            "dtype_names": [spec.dtype for spec in manifest.tensors],
            "shapes": [shape for shape, _ in pairs],
        }
        engine.receive_weights(engine.parse_update_info(told))
        found: dict[str, torch.Tensor] = engine.model.found
        return found

    for found in sent_to_all(group, receive, manifest, buffer, packed=False):
        assert_same(found)


def test_unpacked_one_by_one_in_the_declared_order(group: Group) -> None:
    """As NCCLWeightTransferEngine.receive_weights does it without `packed`: an empty tensor for each name, filled."""
    manifest, buffer = staged()

    def receive(communicator: Communicator) -> dict[str, torch.Tensor]:
        vllms, found = VllmsGroup(communicator), {}
        communicator.all_reduce_one(time.monotonic() + LONG_S)
        for name, (shape, dtype) in declared(manifest):
            found[name] = torch.empty(shape, dtype=dtype)
            vllms.broadcast(found[name], src=0)
        return found

    for found in sent_to_all(group, receive, manifest, buffer, packed=False):
        assert_same(found)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1280, 9000, 1 << 30])
def test_chunks_against_a_numpy_twin(chunk_bytes: int) -> None:
    """Cut where the running sum first exceeds the limit."""
    manifest, _ = staged()
    sizes = np.asarray([math.prod(shape) * dtype.itemsize for _, (shape, dtype) in declared(manifest)])
    expected, begin = [], 0
    while begin < len(sizes):
        beyond = np.flatnonzero(np.cumsum(sizes[begin:]) > chunk_bytes)
        end = begin + int(beyond[0]) + 1 if len(beyond) else len(sizes)
        expected.append([spec.name for spec in manifest.tensors[begin:end]])
        begin = end
    assert [[spec.name for spec in chunk] for chunk in chunks(manifest, chunk_bytes)] == expected


def test_a_tensor_that_vllm_could_not_take_out_of_its_chunk_is_named() -> None:
    layout = build_layout({"odd": torch.zeros(7, dtype=torch.uint8), "wide": torch.zeros(3)})
    manifest = layout.manifest(version=1, step=1, transport="nccl", location="", checksums=(0,))
    with pytest.raises(ValueError, match=r"wide \(float32\) would begin at byte 7 .*use packed=False"):
        list(chunks(manifest))
    assert len(list(chunks(manifest, chunk_bytes=1))) == 2
