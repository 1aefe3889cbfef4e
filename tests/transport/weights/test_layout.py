"""Layouts: every kind of tensor, ties, buckets, names; what a receiver refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.weights import (
    Adapter,
    Expected,
    Manifest,
    SenderSettings,
    WeightsMismatch,
    check_expected,
    open_weights,
)
from headrace.transport.weights.carrier import RECEIVERS
from headrace.transport.weights.layout import (
    ALIGNMENT_BYTES,
    DTYPES,
    build_layout,
    dtype_name,
    expected_of,
    flatten_into,
    model_tensors,
    unflatten,
)
from headrace.transport.weights.manifest import check_layout

torch.set_num_threads(1)


def manifest_of(tensors: dict[str, torch.Tensor], **options: object) -> Manifest:
    layout = build_layout(tensors, **options)  # type: ignore[arg-type]
    return layout.manifest(version=1, step=1, transport="none", location="", checksums=(0,) * len(layout.bounds))


def round_trip(tensors: dict[str, torch.Tensor], **options: object) -> dict[str, torch.Tensor]:
    layout = build_layout(tensors, **options)  # type: ignore[arg-type]
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    flatten_into(buffer, tensors, layout)
    return dict(unflatten(manifest_of(tensors, **options), buffer, include_tied=True))


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def test_strided_scalar_empty_and_single() -> None:
    """cases E82: vllm-project/vllm#57130, radixark/miles#1608."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tensors = {
        "strided": base[::2, ::3],
        "transposed": base.t(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 7),
        "single": torch.tensor([[1.25]]),
    }
    back = round_trip(tensors)
    assert list(back) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name
        assert back[name].shape == tensor.shape


def test_bfloat16_bit_for_bit() -> None:
    """cases E89: vllm-project/vllm#16866, cupy/cupy#5545."""
    values = torch.tensor([1.0, -0.0, 3.0e38, float("nan"), 2.0**-133, float("inf")], dtype=torch.bfloat16)
    assert bits(round_trip({"w": values})["w"]) == bits(values)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_has_a_name(name: str) -> None:
    tensor = torch.ones(3, dtype=DTYPES[name])
    assert dtype_name(tensor.dtype) == name
    assert torch.equal(round_trip({"pad": torch.ones(1, dtype=torch.uint8), "w": tensor})["w"], tensor)


def test_a_dtype_that_cannot_travel_is_refused() -> None:
    with pytest.raises(ValueError, match="complex64 cannot be sent; supported are"):
        build_layout({"w": torch.zeros(2, dtype=torch.complex64)})


def test_dtype_converts_floats_only() -> None:
    back = round_trip({"w": torch.tensor([1.0, 2.5]), "ids": torch.tensor([1, 2])}, dtype="bfloat16")
    assert back["w"].dtype == torch.bfloat16
    assert back["ids"].dtype == torch.int64


def test_float8_is_neither_converted_nor_taken_for_another_float() -> None:
    manifest = manifest_of({"w": torch.zeros(2, dtype=torch.float8_e4m3fn), "x": torch.zeros(2)}, dtype="bfloat16")
    assert [spec.dtype for spec in manifest.tensors] == ["float8_e4m3fn", "bfloat16"]
    with pytest.raises(WeightsMismatch, match="w: dtype float8_e4m3fn sent, bfloat16 expected"):
        check_expected(manifest, dict.fromkeys("wx", Expected((2,), "bfloat16")), cast_floats=True)


def test_ties_travel_once() -> None:
    weight = torch.randn(8, 4)
    tensors = {"embed": weight, "head": weight, "view": weight[:4]}
    manifest = manifest_of(tensors)
    assert manifest.tied == {"head": "embed"}
    assert [spec.name for spec in manifest.tensors] == ["embed", "view"]
    assert manifest.names == {"embed", "head", "view"}
    back = round_trip(tensors)
    assert back["head"].data_ptr() == back["embed"].data_ptr()


def test_buckets_are_the_senders_and_a_tensor_may_span_them() -> None:
    """cases E88: vllm-project/vllm#31943."""
    layout = build_layout({"big": torch.zeros(1000), "small": torch.zeros(3)}, bucket_bytes=1024)
    assert layout.bounds[:2] == ((0, 1024), (1024, 1024))
    assert sum(nbytes for _, nbytes in layout.bounds) == layout.nbytes
    assert all(spec.offset % ALIGNMENT_BYTES == 0 for spec in layout.tensors)


def test_names_lose_their_wrappers() -> None:
    """cases E86: sgl-project/sglang#33588, NovaSky-AI/SkyRL#1680, alibaba/ROLL#500."""
    inner = torch.nn.Linear(2, 2)
    outer = torch.nn.Module()
    outer.add_module("module", inner)
    assert set(model_tensors(outer)) == {"weight", "bias"}
    compiled = torch.nn.Module()
    compiled.add_module("_orig_mod", inner)
    assert set(model_tensors(compiled)) == {"weight", "bias"}
    both = torch.nn.Module()
    both.add_module("module", inner)
    both.weight = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="two tensors of the model are called 'weight'"):
        model_tensors(both)


def test_persistent_buffers_belong_to_a_version() -> None:
    """cases E86: they were never sent. What is computed anew at each start (rotary frequencies) is none of them."""
    model = torch.nn.BatchNorm1d(3)
    model.register_buffer("frequencies", torch.ones(2), persistent=False)
    assert set(model_tensors(model)) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def test_a_receiver_lists_all_that_differs() -> None:
    """cases E83 (pytorch/pytorch#91535) and E86."""
    manifest = manifest_of({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.arange(6, dtype=torch.float32)})
    expected = {"a": Expected((2,), "float32"), "b": Expected((4,), "float32"), "c": Expected((6,), "int64")}
    expected |= {"d": Expected((1,), "float32")}
    with pytest.raises(WeightsMismatch) as caught:
        check_expected(manifest, expected, cast_floats=True)
    text = str(caught.value)
    assert "missing: d" in text
    assert "b: shape (3,) sent, (4,) expected" in text
    assert "c: dtype float32 sent, int64 expected" in text
    with pytest.raises(WeightsMismatch, match="unknown to the receiver: b"):
        check_expected(manifest, {"a": Expected((2,), "float32")})


def test_one_float_for_another_only_when_allowed() -> None:
    manifest = manifest_of({"a": torch.zeros(2)})
    check_expected(manifest, {"a": Expected((2,), "bfloat16")}, cast_floats=True)
    with pytest.raises(WeightsMismatch, match="dtype float32 sent, bfloat16 expected"):
        check_expected(manifest, {"a": Expected((2,), "bfloat16")})


def test_expectation_of_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    assert expected_of(model) == {"weight": Expected((2, 3), "float32"), "bias": Expected((2,), "float32")}


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=6),
    dtypes=st.lists(st.sampled_from(sorted(DTYPES)), min_size=6, max_size=6),
    bucket_bytes=st.integers(64, 300),
)
def test_any_set_of_tensors_comes_back(shapes: list[list[int]], dtypes: list[str], bucket_bytes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"t{i}": torch.randint(0, 2, shape, generator=generator).to(DTYPES[dtype])
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    }
    layout = build_layout(tensors, bucket_bytes=bucket_bytes)
    covered = 0
    for offset, nbytes in layout.bounds:
        assert offset == covered
        covered += nbytes
    assert covered == layout.nbytes
    back = round_trip(tensors, bucket_bytes=bucket_bytes)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def two_tensors() -> Manifest:
    return manifest_of({"a": torch.zeros(40), "b": torch.zeros(3, 5, dtype=torch.bfloat16)}, bucket_bytes=64)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 5), max_size=3)), max_size=6))
def test_what_a_sender_lays_out_does_not_contradict_itself(kinds: list[tuple[str, list[int]]]) -> None:
    tensors = {f"t{i}": torch.zeros(shape).to(DTYPES[dtype]) for i, (dtype, shape) in enumerate(kinds)}
    check_layout(manifest_of(tensors, bucket_bytes=64))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nbytes": -1}, "-1 bytes in all"),
        ({"nbytes": 10**12}, "the buckets end at 222, the bytes at 1000000000000"),
        ({"tensors": {0: {"nbytes": 320}}}, r"a: 320 bytes are not float32\[40\]"),
        ({"tensors": {0: {"shape": (-40,)}}}, r"a: 160 bytes are not float32\[-40\]"),
        ({"tensors": {0: {"shape": (-8, -5)}}}, r"a: 160 bytes are not float32\[-8, -5\]"),
        ({"tensors": {0: {"offset": -64}}}, r"a: bytes \[-64, 96\) do not lie between 0"),
        ({"tensors": {1: {"offset": 64}}}, r"b: bytes \[64, 94\) do not lie between 160"),
        ({"tensors": {1: {"offset": 256}}}, r"b: bytes \[256, 286\) do not lie between 160.*and the end, 222"),
        ({"tensors": {1: {"dtype": "int4"}}}, "b: dtype int4 is none of bfloat16"),
        ({"tensors": {1: {"name": "a"}}}, "two tensors have one name"),
        ({"tied": {"c": "d"}}, "c: tied to d, which is not sent"),
        ({"tied": {"a": "b"}}, "a: tied, and sent too"),
        ({"buckets": {0: {"nbytes": 32}}}, "bucket 1 is 64 bytes from 64, the one before ends at 32"),
        ({"buckets": {3: {"nbytes": 3000}}}, "the buckets end at 3192, the bytes at 222"),
        ({"buckets": {3: {"nbytes": -30}}}, "bucket 3 is -30 bytes"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    manifest = two_tensors()
    check_layout(manifest)
    for field, change in changes.items():
        if field in ("tensors", "buckets"):
            entries = getattr(manifest, field)
            change = tuple(replace(entry, **change.get(i, {})) for i, entry in enumerate(entries))
        manifest = replace(manifest, **{field: change})
    for transport in RECEIVERS:
        with pytest.raises(WeightsMismatch, match=words):
            open_weights(replace(manifest, transport=transport))
    above = replace(two_tensors(), adapter=Adapter(8, 16.0, ("m",), manifest))
    with pytest.raises(WeightsMismatch, match=words):
        check_layout(above)


@pytest.mark.parametrize("value", [0, 63, 2**63 - 1, 64.0])
def test_buckets_that_cannot_be_made_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"weights\.bucket_bytes must be an integer from 64 to"):
        SenderSettings(run_id="x", bucket_bytes=value)


@pytest.mark.parametrize("value", [0, 65, 2.5])
def test_a_number_of_buffers_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"weights\.num_buffers must be an integer from 1 to 64"):
        SenderSettings(run_id="x", num_buffers=value)
