"""Adapters on a causal LM: PEFT puts them in, the base is frozen. Their tensors, their file, the model without them.

Called by the policy and the workbench, in the learner's worker thread, and by the export. Knows nothing of versions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headrace.actors.learner.lora import LoraSettings
from headrace.actors.learner.weight_files import check_weight_files
from headrace.transport.weights import Adapter, Manifest
from headrace.transport.weights.layout import model_tensors

CONFIG_NAME = "adapter_config.json"
"""PEFT's name of the file that says of a folder that it holds an adapter."""


class Adapters:
    """Put into `model` in place: its class, and what its layers and its head are called, stay as they were. At first B
    is zero: the model does what it did. base: where the frozen weights are, for the programs that load an adapter's
    folder. Raises ValueError where a target does not exist or is no linear layer."""

    def __init__(self, model: Any, settings: LoraSettings, *, base: Path) -> None:
        self._settings = settings
        cast(model, settings.base_dtype)
        self._peft = _with_adapters(model, settings)
        self._peft.peft_config["default"].base_model_name_or_path = str(base)
        self._model = model
        self.modules = tuple(name for name, module in model.named_modules() if hasattr(module, "base_layer"))

    def tensors(self) -> dict[str, torch.Tensor]:
        """A (float32[rank, in]) and B (float32[out, rank]) of each module, under PEFT's names; the live ones."""
        from peft import get_peft_model_state_dict

        state: dict[str, torch.Tensor] = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        return state

    def base_tensors(self) -> dict[str, torch.Tensor]:
        """The frozen weights under the names of the model without adapters."""
        named = model_tensors(self._model)
        return {name.replace(".base_layer.", "."): t for name, t in named.items() if ".lora_" not in name}

    def description(self, base: Manifest | None) -> Adapter:
        """What a manifest says of these tensors."""
        return Adapter(self._settings.rank, self._settings.alpha, self.modules, base)

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, the model is the base alone."""
        with self._peft.disable_adapter():
            yield

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._peft.state_dict())

    def save_pretrained(self, folder: Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """adapter_model.safetensors and adapter_config.json, which PEFT and vLLM load. state_dict: a copy of it at
        another moment; None: as they are."""
        self._peft.save_pretrained(folder, save_embedding_layers=False, state_dict=state_dict)
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's form of a model card, not filled in

    def load(self, folder: Path) -> None:
        """Take over what `save_pretrained` wrote. Raises ValueError where that was under other settings, or naming
        the file that is damaged."""
        from peft import PeftConfig, set_peft_model_state_dict
        from safetensors.torch import load_file

        check_weight_files(folder)
        saved = PeftConfig.from_pretrained(str(folder))
        theirs = {"rank": saved.r, "alpha": float(saved.lora_alpha)}
        ours = {"rank": self._settings.rank, "alpha": self._settings.alpha}
        state = load_file(folder / "adapter_model.safetensors")
        if theirs != ours or state.keys() != self.tensors().keys():
            raise ValueError(
                f"{folder} holds an adapter with {theirs} of {len(state)} tensors, and learner.lora says {ours} with "
                f"{len(self.tensors())}; resume with the settings of before, or start a new run"
            )
        set_peft_model_state_dict(self._peft, state)


def cast(model: nn.Module, dtype: str) -> None:
    """Convert the parameters in place. Buffers stay: rotary frequencies in half precision would move the positions."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))


def merged(base: Path, adapter: Path) -> Any:
    """The plain model, float32, whose weights are W + (alpha / rank) · B @ A."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()


def _with_adapters(model: Any, settings: LoraSettings) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(
            "learner.lora needs the package peft, which is not installed; pip install 'headrace[lora]', or choose "
            "learner/lora=none"
        ) from error

    targets = settings.target_modules
    if not isinstance(targets, str):
        _check_targets(model, targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # it divides it by r; a float is as good
        lora_dropout=0.0,
        bias="none",
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config).eval()


def _check_targets(model: Any, targets: tuple[str, ...]) -> None:
    """PEFT leaves out in silence what it does not find; engines have no adapters on embeddings and the output head."""
    head = model.get_output_embeddings()
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head}
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            allowed = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise ValueError(
                f"lora.target_modules: no linear layer of {type(model).__name__} is called {target!r}; there are "
                f"{allowed} (adapters on embeddings and on the output head are not supported)"
            )
