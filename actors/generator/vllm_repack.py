"""Inside a vLLM worker on a CPU: weights that vLLM 0.32 packs for its kernels when it starts, and does not pack again
when they are loaded anew. Without this an update leaves old ones in service, or unpacked ones where packed are read.

    tied output heads   the head shares the embedding's parameter and multiplies by a packed copy of its own; a reload
                        packs again only what it loads, and loads the embedding alone
    experts             packed by the kernel, which is made once; later loads put the weights as they come in its place

Called by vllm_transfer.py around each load. Does nothing where the model lies on a GPU: nothing is packed there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


class Repack:
    """Of one load: made before vLLM's layerwise reload begins, `finish`ed after it ended, well or not."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kernels: dict[Any, Any] = {}
        for layer in model.modules():
            method: Any = getattr(layer, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                self._kernels[method] = method.moe_kernel
                method.moe_kernel = None  # loading makes another, which packs what was loaded

    def finish(self) -> None:
        for method, kernel in self._kernels.items():
            if method.moe_kernel is None:  # its layer was not loaded
                method.moe_kernel = kernel
        for head in _tied_heads(self._model):
            head.quant_method.process_weights_after_loading(head)


def _tied_heads(model: nn.Module) -> list[Any]:
    layers = list(model.modules())
    holders = Counter(id(layer._parameters.get("weight")) for layer in layers)
    return [layer for layer in layers if isinstance(layer, ParallelLMHead) and holders[id(layer.weight)] > 1]
