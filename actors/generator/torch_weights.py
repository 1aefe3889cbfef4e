"""How a version gets into a transformers model that decodes: full weights are copied over its own, an adapter's factors
are kept beside them and added by a hook: W x + (alpha / rank) · B (A x), in float32, as PEFT computes it.

Runs in the engine's thread, between two decode steps. An adapter of a half-precision model so loses nothing to the
rounding of W. Knows nothing of checksums: what it is given was verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headrace.actors.generator.adapter import AdapterRefused, factors_by_module
from headrace.transport.weights import Manifest, WeightReceiver, WeightsMismatch
from headrace.transport.weights.layout import model_tensors


class TorchWeights:
    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._factors: dict[str, tuple[torch.Tensor, torch.Tensor, float]] = {}
        self._hooked: set[str] = set()

    def load(self, manifest: Manifest, receiver: WeightReceiver, base: WeightReceiver | None) -> None:
        """`base`: full weights to load first, None to keep those that are there. Raises AdapterRefused, and
        WeightsMismatch where full weights were overwritten while they were copied: the model is then a mixture."""
        if manifest.adapter is None:
            self._copy(receiver)
            self._factors = {}
            return
        tensors = _copies(receiver)
        if base is not None:
            self._copy(base)
        self._adapt(tensors, manifest.adapter.alpha / manifest.adapter.rank)

    def load_arriving(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Full weights, one after the other, each verified. What `tensors` raises leaves the model a mixture."""
        own = model_tensors(self._model)
        with torch.no_grad():
            for name, tensor in tensors:
                own[name].copy_(tensor)
        self._factors = {}

    def _copy(self, receiver: WeightReceiver) -> None:
        own = model_tensors(self._model)
        with torch.no_grad():
            for name, tensor in receiver.tensors():
                own[name].copy_(tensor)
        receiver.check_unchanged()

    def _adapt(self, tensors: dict[str, torch.Tensor], scale: float) -> None:
        names = factors_by_module(tensors)
        for module in names.keys() - self._hooked:
            self._model.get_submodule(module).register_forward_hook(self._hook(module))
            self._hooked.add(module)
        self._factors = {module: (tensors[a], tensors[b], scale) for module, (a, b) in names.items()}

    def _hook(self, module: str) -> Any:
        def add(_: nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor | None:
            if module not in self._factors:
                return None
            a, b, scale = self._factors[module]
            wide = torch.promote_types(arguments[0].dtype, a.dtype)
            inner = nn.functional.linear(arguments[0].to(wide), a.to(wide))
            return (output + nn.functional.linear(inner, b.to(wide)) * scale).to(output.dtype)

        return add


def _copies(receiver: WeightReceiver) -> dict[str, torch.Tensor]:
    tensors = {name: tensor.to(torch.float32, copy=True) for name, tensor in receiver.tensors()}
    try:
        receiver.check_unchanged()
    except WeightsMismatch as error:
        raise AdapterRefused(str(error)) from error
    return tensors
