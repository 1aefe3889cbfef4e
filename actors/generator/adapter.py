"""Whether an adapter fits the model here, and whether its base must be loaded first. Names and shapes only, no tensors.

Called by an engine's staging, while decoding goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.transport.weights import Adapter, Expected, Manifest, WeightsMismatch, check_expected, same_weights

_OUTER = "base_model.model."
"""Before the model's own names in those of an adapter (PEFT's, and vLLM's)."""
_A, _B = ".lora_A.weight", ".lora_B.weight"


class AdapterRefused(WeightsMismatch):
    """A staged adapter could not be read after all. Nothing has changed: the model and its adapter are as before."""


def check_version(manifest: Manifest, expected: Mapping[str, Expected]) -> None:
    """Full weights, or an adapter and the full weights below it: raises WeightsMismatch with all that does not fit a
    model whose parameters are `expected`."""
    adapter = manifest.adapter
    if adapter is None:
        check_expected(manifest, expected, cast_floats=True)
        return
    check_expected(manifest, expected_factors(adapter, expected), cast_floats=True)
    if adapter.base is not None:
        check_expected(adapter.base, expected, cast_floats=True)


def expected_factors(adapter: Adapter, expected: Mapping[str, Expected]) -> dict[str, Expected]:
    """A (float[rank, in]) and B (float[out, rank]) of each module that the model has; those of others are unknown."""
    factors: dict[str, Expected] = {}
    for module in adapter.modules:
        weight = expected.get(f"{module}.weight")
        if weight is not None and len(weight.shape) == 2:
            num_out, num_in = weight.shape
            factors[f"{_OUTER}{module}{_A}"] = Expected((adapter.rank, num_in), "float32")
            factors[f"{_OUTER}{module}{_B}"] = Expected((num_out, adapter.rank), "float32")
    return factors


def factors_by_module(names: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Module → the names of its A and its B."""
    modules = [name.removeprefix(_OUTER).removesuffix(_A) for name in names if name.endswith(_A)]
    return {module: (f"{_OUTER}{module}{_A}", f"{_OUTER}{module}{_B}") for module in modules}


def missing_base(manifest: Manifest, held: Manifest | None) -> Manifest | None:
    """The full weights that must be loaded before this version; None where there are none to load.

    held: the full weights that the engine has, None for those of its model folder. Raises WeightsMismatch where the
    adapter goes upon the model folder's and they are no longer there."""
    if manifest.adapter is None:
        return None
    base = manifest.adapter.base
    if base is None and held is not None:
        raise WeightsMismatch(
            f"version {manifest.version} is an adapter upon the weights of the model folder, which version "
            f"{held.version} has replaced in this engine; start the engine anew"
        )
    if base is None or (held is not None and same_weights(base, held)):
        return None
    return base
