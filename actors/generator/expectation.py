"""What the model in a checkpoint folder is made of, without loading it: names, shapes, dtypes, and its context."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.transport.weights import Expected
from headrace.transport.weights.layout import expected_of


def read_config(model_path: str) -> object:
    """transformers' config. Raises ValueError where the folder or hub name holds none."""
    try:
        return AutoConfig.from_pretrained(model_path)
    except (OSError, ValueError) as error:
        where = "the folder has no valid config.json" if Path(model_path).is_dir() else "no such folder or hub model"
        raise ValueError(f"model_path {model_path!r}: {where} ({error})") from error


def expected_weights(model_path: str) -> dict[str, Expected]:
    """What the checkpoint there holds, under transformers' names, built on the meta device (no memory)."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(read_config(model_path))
    return expected_of(model)


def linear_layers(model_path: str) -> list[str]:
    """Names of the linear layers of the model there, but for its output head: where adapters may be."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(read_config(model_path))
    head = model.get_output_embeddings()
    return [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head
    ]


def context_length(model_path: str, max_model_len: int | None) -> int:
    """Tokens of a sequence at most. Raises ValueError where `max_model_len` exceeds what the model was made for."""
    text_config = read_config(model_path).get_text_config()  # type: ignore[attr-defined]
    limit = int(text_config.max_position_embeddings)
    if max_model_len is None:
        return limit
    if max_model_len > limit:
        raise ValueError(f"max_model_len must be <= {limit}, the context of {model_path!r}, got {max_model_len}")
    return max_model_len
