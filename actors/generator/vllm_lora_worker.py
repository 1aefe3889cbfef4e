"""Inside a vLLM worker: one adapter, read from a staged version, checked, swapped in; and the model as it is below.

`LoraWorker` is mixed into vLLM's worker (`worker_extension_cls`). An adapter is first prepared, which may be refused
and changes nothing, then swapped in, which copies factors to where vLLM's kernels read them. Never reads a folder.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.utils import replace_submodule

from headrace.actors.generator.vllm_lora import ADAPTER_ID
from headrace.transport.weights import Manifest, open_weights


class LoraWorker:
    model_runner: Any
    _headrace_prepared: LoRAModel | None

    def headrace_prepare_adapter(self, manifest: dict[str, Any] | None) -> None:
        """`manifest`: of an adapter, as plain values; None: one of zeros. Raises ValueError for modules that vLLM does
        not adapt, WeightsMismatch where the bytes are gone."""
        from headrace.actors.generator.vllm_transfer import manifest_from_dict

        manager = self.model_runner.get_model().lora_manager
        if manager.device.type == "cpu":
            _multiply_densely(manager)
        if manifest is None:
            self._headrace_prepared = manager.create_dummy_lora(ADAPTER_ID, 1, {})  # zeros; vLLM takes no empty one
        else:
            self._headrace_prepared = _read(manager, manifest_from_dict(manifest))

    def headrace_swap_adapter(self) -> None:
        manager = self.model_runner.get_model().lora_manager
        prepared, self._headrace_prepared = self._headrace_prepared, None
        if prepared is None:
            raise RuntimeError("no adapter was prepared; headrace_prepare_adapter comes first")
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(prepared)
        manager.activate_adapter(ADAPTER_ID)


def _read(manager: Any, manifest: Manifest) -> LoRAModel:
    """An adapter with tensors of its own, under vLLM's names."""
    adapter = manifest.adapter
    assert adapter is not None
    staged = open_weights(manifest)
    tensors = {name: tensor.clone() for name, tensor in staged.tensors()}  # vLLM scales B in place
    staged.check_unchanged()
    staged.close()
    mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
    lora = LoRAModel.from_lora_tensors(
        ADAPTER_ID,
        tensors,
        PEFTHelper(r=adapter.rank, lora_alpha=adapter.alpha, target_modules=list(adapter.modules)),
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
    )
    _check_modules(manager, lora)
    return lora


def _check_modules(manager: Any, lora: LoRAModel) -> None:
    """vLLM leaves out in silence what it has no place for."""
    known = set(manager.modules)
    for parts in manager.packed_modules.values():
        known.update(parts)
    unknown = sorted(set(lora.loras) - known)
    if unknown:
        shown = ", ".join(unknown[:10]) + (f", … {len(unknown) - 10} more" if len(unknown) > 10 else "")
        raise ValueError(f"vLLM adapts no such modules: {shown}; leave them out of learner.lora.target_modules")


def _multiply_densely(manager: Any) -> None:
    """vLLM's operators for the CPU gather the factors anew for every token, since each may have another adapter. Here
    all have the same one, so that two plain products do."""
    for wrapper in manager.punica_wrapper_mapping.values():
        wrapper.add_lora_linear = partial(_add_lora_linear, wrapper)


def _add_lora_linear(
    wrapper: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **_: Any,
) -> None:
    """y[:, slice] += scale · (x @ Aᵀ) @ Bᵀ in place, for each slice of a fused layer. A: [1, 1, rank, in], B:
    [1, 1, out, rank]; the inner product is float32, as in vLLM's kernels."""
    if wrapper.no_lora:
        return
    x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    start = 0
    for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
        inner = nn.functional.linear(x.float(), a[0, 0].float()) * scale
        y[:, start : start + width] += nn.functional.linear(inner.to(y.dtype), b[0, 0].to(y.dtype))
        start += width


def uncover(model: nn.Module) -> None:
    """Put the layers below the adapters back into the model, so that full weights find them by name."""
    for name, wrapper in _wrappers(model).items():
        replace_submodule(model, name, wrapper.base_layer)


def cover(model: nn.Module) -> None:
    """The opposite of `uncover`. Both may be called twice."""
    for name, wrapper in _wrappers(model).items():
        replace_submodule(model, name, wrapper)


def _wrappers(model: nn.Module) -> dict[str, Any]:
    manager = getattr(model, "lora_manager", None)
    return {} if manager is None else manager.modules
