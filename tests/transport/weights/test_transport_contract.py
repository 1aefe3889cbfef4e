"""What every weight transport promises: the tensors of one version, bit for bit, or an error, never something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transports import Transport

from headrace.transport.weights import Manifest, WeightSender, WeightsMismatch, check_expected
from headrace.transport.weights.checksum import checksums
from headrace.transport.weights.layout import DTYPES, build_layout, expected_of, flatten_into, model_tensors

torch.set_num_threads(1)

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def make_sender(transport: Transport, tmp_path: Path) -> Iterator[Callable[..., WeightSender]]:
    """Senders that are closed at the end."""
    senders: list[WeightSender] = []

    def make(**settings: Any) -> WeightSender:
        senders.append(transport.sender(tmp_path, **settings))
        return senders[-1]

    yield make
    for sender in senders:
        sender.close()


def publish(sender: WeightSender, tensors: Tensors, version: int = 1, **options: Any) -> Manifest:
    staged = sender.stage(tensors, version=version, step=10 * version, **options)
    assert staged is not None, "no buffer is free"
    assert (staged.version, staged.step) == (version, 10 * version)
    return staged.seal()


def received(transport: Transport, manifest: Manifest) -> Tensors:
    """Verified copies, tied names included."""
    receiver = transport.near(manifest)
    receiver.verify()
    tensors = {name: tensor.clone() for name, tensor in receiver.tensors(include_tied=True)}
    receiver.check_unchanged()
    receiver.close()
    receiver.close()
    return tensors


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(found: Tensors, sent: Tensors) -> None:
    """Names, shapes, dtypes and bits."""
    assert set(found) == set(sent)
    for name, tensor in sent.items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype), name
        assert bits(found[name]) == bits(tensor), name


def checksum(tensors: Tensors) -> tuple[int, ...]:
    """Of the whole flat buffer that these tensors make, computed here."""
    layout = build_layout(tensors)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    flatten_into(buffer, tensors, layout)
    return checksums(memoryview(buffer.numpy()), [(0, layout.nbytes)])


def weights(value: float) -> Tensors:
    return {"a": torch.full((5, 3), value), "b": torch.full((700,), value, dtype=torch.bfloat16)}


def test_strided_scalar_empty_and_single(transport: Transport, make_sender: Any) -> None:
    """cases E82: vllm-project/vllm#57130, radixark/miles#1608."""
    base = torch.randn(12, 16)
    tensors = {
        "strided": base[::2, ::3],
        "transposed": base.t(),
        "expanded": torch.randn(4, 1).expand(4, 5),
        "scalar": torch.tensor(3.5),
        "scalar_of_a_row": base[3, 7],
        "empty": torch.empty(0, 7),
        "single": torch.tensor([[1.25]]),
        "last_empty": torch.empty(3, 0, dtype=torch.bfloat16),
    }
    found = received(transport, publish(make_sender(), tensors))
    assert_same(found, tensors)
    assert checksum(found) == checksum(tensors)


def test_nothing_but_empty_tensors(transport: Transport, make_sender: Any) -> None:
    tensors = {"a": torch.empty(0), "b": torch.empty(2, 0, dtype=torch.int64)}
    assert_same(received(transport, publish(make_sender(), tensors)), tensors)


def test_bfloat16_and_float16_bit_for_bit(transport: Transport, make_sender: Any) -> None:
    """cases E89: vllm-project/vllm#16866, cupy/cupy#5545. Each of the 65,536 patterns, NaN's payloads too."""
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    special = torch.tensor([1.0, -0.0, 3.0e38, float("nan"), 2.0**-133, float("-inf")], dtype=torch.bfloat16)
    tensors = {"bf16": patterns.view(torch.bfloat16), "fp16": patterns.view(torch.float16), "special": special}
    assert_same(received(transport, publish(make_sender(), tensors)), tensors)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_bit_for_bit_and_never_converted(transport: Transport, make_sender: Any, name: str) -> None:
    """Quantised weights mean nothing without their scales: `dtype` leaves both as they are asked for."""
    patterns = torch.arange(256, dtype=torch.uint8).view(DTYPES[name])
    tensors = {"w": patterns, "strided": patterns.reshape(16, 16).t(), "scale": torch.tensor(0.25)}
    sender = make_sender()
    assert_same(received(transport, publish(sender, tensors)), tensors)
    converted = {**tensors, "scale": torch.tensor(0.25, dtype=torch.bfloat16)}
    assert_same(received(transport, publish(sender, tensors, 2, dtype="bfloat16")), converted)
    with pytest.raises(ValueError, match="weights dtype must be one of"):
        sender.stage(tensors, version=3, step=3, dtype=name)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype(transport: Transport, make_sender: Any, name: str) -> None:
    tensors = {"pad": torch.ones(1, dtype=torch.uint8), "w": torch.tensor([0, 1, 1]).to(DTYPES[name])}
    assert_same(received(transport, publish(make_sender(), tensors)), tensors)


def test_a_dtype_that_cannot_travel_is_refused(make_sender: Any) -> None:
    """cases E89."""
    with pytest.raises(ValueError, match="complex64 cannot be sent; supported are float64"):
        make_sender().stage({"w": torch.zeros(2, dtype=torch.complex64)}, version=1, step=1)


def test_ties_and_buffers_of_a_model(transport: Transport, make_sender: Any) -> None:
    """cases E86: sgl-project/sglang#33588. What was sent is what is loaded, persistent buffers included."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    model[2].weight = model[0].weight
    model[1].running_mean.uniform_()
    tensors = model_tensors(model)
    manifest = publish(make_sender(), tensors)
    assert manifest.tied == {"2.weight": "0.weight"}
    assert sum(spec.name.endswith("weight") for spec in manifest.tensors) == 2
    assert manifest.names == set(tensors)
    check_expected(manifest, expected_of(model))
    found = received(transport, manifest)
    assert_same(found, tensors)
    model.load_state_dict(found, strict=True)


def test_names_without_wrappers_reach_the_bare_model(transport: Transport, make_sender: Any) -> None:
    """cases E86: NovaSky-AI/SkyRL#1680, alibaba/ROLL#500. The learner's model is compiled and data-parallel."""
    bare = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    wrapped = torch.nn.Module()
    wrapped.module = torch.nn.Module()
    wrapped.module._orig_mod = bare
    manifest = publish(make_sender(), model_tensors(wrapped))
    check_expected(manifest, expected_of(bare))
    assert_same(received(transport, manifest), model_tensors(bare))


def test_staging_is_a_copy(transport: Transport, make_sender: Any) -> None:
    """The learner's next step changes its weights while the version is sealed, sent and loaded."""
    tensors = weights(1)
    staged = make_sender().stage(tensors, version=1, step=1)
    for tensor in tensors.values():
        tensor.fill_(7)
    manifest = staged.seal()
    for tensor in tensors.values():
        tensor.fill_(8)
    assert_same(received(transport, manifest), weights(1))


def test_there_and_back(transport: Transport, make_sender: Any) -> None:
    """cases E85: lightseekorg/tokenspeed#1373. W, W + 1, W: the checksum of what was loaded, not "it changed"."""
    base = {"w": torch.randn(64, 33), "v": torch.randn(5).bfloat16()}
    changed = {name: tensor + 1 for name, tensor in base.items()}
    sender = make_sender()
    for version, tensors in enumerate((base, changed, base), start=1):
        manifest = publish(sender, tensors, version)
        assert checksum(received(transport, manifest)) == checksum(tensors)
        sender.release(version)


@pytest.mark.parametrize("bucket_bytes", [64, 100, 4096, 1 << 20])
def test_buckets_are_the_senders(transport: Transport, make_sender: Any, bucket_bytes: int) -> None:
    """cases E88: vllm-project/vllm#31943. A tensor larger than a bucket, buckets that cut tensors anywhere."""
    tensors = {"small": torch.randn(3), "big": torch.randn(3000), "byte": torch.ones(1, dtype=torch.uint8)}
    manifest = publish(make_sender(bucket_bytes=bucket_bytes), tensors)
    assert max(bucket.nbytes for bucket in manifest.buckets) <= bucket_bytes
    assert sum(bucket.nbytes for bucket in manifest.buckets) == manifest.nbytes
    assert_same(received(transport, manifest), tensors)


@pytest.mark.parametrize("offset", [0, 59, 64, 700, 1527])
def test_one_flipped_bit_is_found(transport: Transport, make_sender: Any, offset: int) -> None:
    manifest = publish(make_sender(bucket_bytes=256), weights(3))
    assert manifest.nbytes == 1528
    receiver = transport.near(manifest)
    transport.flip(manifest, receiver, offset)
    with pytest.raises(WeightsMismatch, match=rf"bucket {offset // 256} "):
        receiver.verify()
    receiver.close()


def test_bytes_that_are_gone_are_a_mismatch(transport: Transport, make_sender: Any) -> None:
    sender = make_sender()
    manifest = publish(sender, weights(3))
    transport.lose(manifest)
    with pytest.raises(WeightsMismatch):
        transport.near(manifest).verify()
    assert_same(received(transport, publish(sender, weights(4), 2)), weights(4))


def test_five_versions_while_a_consumer_is_between_seen_and_load(transport: Transport, make_sender: Any) -> None:
    """cases E91: PrimeIntellect-ai/prime-rl#1857. Nobody released what it saw, so it loads that; then the newest."""
    sender = make_sender(num_buffers=2)
    seen = publish(sender, weights(1), 1)
    newest = seen
    for version in range(2, 7):
        if newest is not seen:
            sender.release(newest.version)
        newest = publish(sender, weights(version), version)
    assert_same(received(transport, seen), weights(1))
    sender.release(seen.version)
    assert_same(received(transport, newest), weights(6))


def test_a_consumer_that_was_taken_for_gone_never_serves_a_mixture(transport: Transport, make_sender: Any) -> None:
    """cases E91: five versions come while it stands between verify and load, and its version is released."""
    sender = make_sender(num_buffers=1)
    seen = transport.near(publish(sender, weights(1), 1))
    seen.verify()
    sender.release(1)
    for version in range(2, 7):
        newest = publish(sender, weights(version), version)
        if version < 6:
            sender.release(version)
    loaded = {name: tensor.clone() for name, tensor in seen.tensors()}
    try:
        seen.check_unchanged()
    except WeightsMismatch:
        pass  # it was told
    else:
        assert_same(loaded, weights(1))
    seen.close()
    assert_same(received(transport, newest), weights(6))


def test_latest_only_and_versions_rise(make_sender: Any) -> None:
    sender = make_sender(num_buffers=2)
    publish(sender, weights(1), 1)
    publish(sender, weights(4), 4)
    assert sender.stage(weights(5), version=5, step=50) is None
    sender.release(99)
    sender.release(1)
    with pytest.raises(ValueError, match=r"above the last one staged \(4\), got 4"):
        sender.stage(weights(4), version=4, step=40)
    publish(sender, weights(5), 5)
    sender.close()
    sender.close()
    with pytest.raises(ValueError, match="closed"):
        sender.stage(weights(6), version=6, step=60)
