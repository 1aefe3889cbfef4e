"""Whether an adapter fits, by names and shapes; what does not is refused with the list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.actors.generator.adapter import check_version, expected_factors, missing_base
from headrace.transport.weights import Adapter, Bucket, Expected, Manifest, TensorSpec, WeightsMismatch

MODEL = {
    "m.up.weight": Expected((6, 4), "bfloat16"),
    "m.down.weight": Expected((4, 6), "bfloat16"),
    "m.norm.weight": Expected((4,), "bfloat16"),
}


def full(version: int, checksum: int = 1) -> Manifest:
    specs = tuple(TensorSpec(name, "float32", e.shape, 0, 0) for name, e in MODEL.items())
    return Manifest(version, version, "shm", f"full-{version}", 0, specs, (Bucket(0, 0, checksum),), {})


def upon(base: Manifest | None, *, rank: int = 2, modules: tuple[str, ...] = ("m.up", "m.down")) -> Manifest:
    adapter = Adapter(rank, 4.0, modules, base)
    specs = tuple(
        TensorSpec(name, "float32", expected.shape, 0, 0) for name, expected in expected_factors(adapter, MODEL).items()
    )
    return Manifest(9, 9, "shm", "adapter", 0, specs, (), {}, adapter)


def test_what_fits_passes_whatever_its_precision() -> None:
    check_version(full(1), MODEL)
    check_version(upon(None), MODEL)
    check_version(upon(full(1)), MODEL)
    assert expected_factors(Adapter(2, 4.0, ("m.up",), None), MODEL) == {
        "base_model.model.m.up.lora_A.weight": Expected((2, 4), "float32"),
        "base_model.model.m.up.lora_B.weight": Expected((6, 2), "float32"),
    }


def test_a_rank_that_is_not_that_of_the_factors() -> None:
    adapter = Adapter(3, 4.0, ("m.up", "m.down"), None)
    with pytest.raises(WeightsMismatch, match=r"4 differences.*up.lora_A.weight: shape \(2, 4\) sent, \(3, 4\) expect"):
        check_version(replace(upon(None), adapter=adapter), MODEL)


@pytest.mark.parametrize("module", ["m.nowhere", "m.norm"])
def test_a_module_that_the_model_cannot_have_adapted(module: str) -> None:
    spec = TensorSpec(f"base_model.model.{module}.lora_A.weight", "float32", (2, 4), 0, 0)
    manifest = upon(None, modules=("m.up", module))
    with pytest.raises(WeightsMismatch, match=f"unknown to the receiver: base_model.model.{module}.lora_A.weight"):
        check_version(replace(manifest, tensors=(*manifest.tensors, spec)), MODEL)


def test_a_factor_that_is_missing() -> None:
    manifest = upon(None)
    with pytest.raises(WeightsMismatch, match=r"missing: base_model.model.m.down.lora_B.weight"):
        check_version(replace(manifest, tensors=manifest.tensors[:-1]), MODEL)


def test_a_base_of_another_model() -> None:
    base = full(1)
    with pytest.raises(WeightsMismatch, match=r"missing: m.norm.weight"):
        check_version(upon(replace(base, tensors=base.tensors[:-1])), MODEL)


def test_which_base_must_be_loaded_first() -> None:
    assert missing_base(full(3), None) is None
    assert missing_base(upon(None), None) is None
    assert missing_base(upon(full(1)), None) == full(1)
    assert missing_base(upon(full(1)), full(1)) is None
    assert missing_base(upon(full(5)), full(1)) is None, "the same bytes, published anew by a restarted learner"
    assert missing_base(upon(full(5, checksum=2)), full(1)) == full(5, checksum=2)
    with pytest.raises(WeightsMismatch, match="which version 1 has replaced in this engine"):
        missing_base(upon(None), full(1))
