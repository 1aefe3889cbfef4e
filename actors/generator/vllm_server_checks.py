"""Whether a server that somebody else runs can do what a run needs, and the command line of one that can. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.transport.weights.collective import COLLECTIVE

LOGPROBS_MODE = "processed_logprobs"


TRANSFER = """--weight-transfer-config '{"backend": "nccl"}'"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run needs of a server. folder: of its model. transport: `weights.transport`. api_key_env: the name of the
    environment variable with the server's key; None: it has none."""

    folder: str
    dtype: str
    context_tokens: int
    transport: str
    api_key_env: str | None = None


def command_line(wanted: Wanted, *, cpu: bool) -> str:
    """How to start a server that passes `problems`."""
    parts = [
        "VLLM_SERVER_DEV_MODE=1 vllm serve", wanted.folder, f"--dtype {wanted.dtype}",
        f"--max-model-len {wanted.context_tokens} --enable-scale-out --logprobs-mode {LOGPROBS_MODE}",
    ]  # fmt: skip
    if wanted.transport == COLLECTIVE:
        parts.append(TRANSFER)
    if wanted.api_key_env is not None:
        parts.append(f'--api-key "${wanted.api_key_env}"')
    context_tokens = wanted.context_tokens
    if cpu:
        parts.append(f"--no-enable-chunked-prefill --max-num-batched-tokens {max(2048, context_tokens)}")
    return " ".join(parts)


def problems(settings: Mapping[str, Any], wanted: Wanted) -> list[str]:
    """What is wrong in vLLM's own configuration; empty where nothing is."""
    model, scheduler = settings["model_config"], settings["scheduler_config"]
    dtype, context_tokens = wanted.dtype, wanted.context_tokens
    found = []
    if model["logprobs_mode"] != LOGPROBS_MODE:
        found.append(
            f"its --logprobs-mode is {model['logprobs_mode']}: its log-probs are not those of the distribution that it "
            f"samples from; {LOGPROBS_MODE} is needed"
        )
    if int(model["max_model_len"]) < context_tokens:
        found.append(f"its --max-model-len is {model['max_model_len']}, the run needs {context_tokens}")
    served = str(model["dtype"]).removeprefix("torch.")
    if dtype not in ("auto", served):
        found.append(f"its --dtype is {served}, the run's inference.dtype is {dtype}")
    if model.get("quantization"):
        found.append(f"its weights are quantised ({model['quantization']}), the learner's are not")
    if is_cpu(settings) and scheduler["enable_chunked_prefill"]:
        found.append("it splits long prompts, of which vLLM on a CPU dies where a request has a seed")
    return found + (_nccl_problems(settings) if wanted.transport == COLLECTIVE else [])


def _nccl_problems(settings: Mapping[str, Any]) -> list[str]:
    transfer = settings.get("weight_transfer_config")
    if is_cpu(settings):
        return ["it runs on a CPU, and NCCL needs GPUs at both ends; add weights=checkpoint to the run"]
    if not transfer or transfer["backend"] != "nccl":
        other = f"its weight transfer is {transfer['backend']}" if transfer else "it has no weight transfer"
        return [f"{other}; {TRANSFER} is needed, or weights=checkpoint in the run"]
    return []


def is_cpu(settings: Mapping[str, Any]) -> bool:
    return str(settings["device_config"]["device"]) == "cpu"


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""what configurations call how many experts they have"""


def reload_problems(settings: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What vLLM 0.32 on a CPU keeps packed from its start and does not load anew: updates would be served in part, with
    nobody told. config: the run's config.json, defaults included."""
    if not is_cpu(settings):
        return []
    text = config.get("text_config") or config
    found = []
    if config.get("tie_word_embeddings") or text.get("tie_word_embeddings"):
        found.append("its output head shares the embedding's weights (tie_word_embeddings), and keeps the first ones")
    if any(text.get(name) for name in _EXPERTS):
        found.append("it has experts, which are multiplied wrongly after the first update")
    return [
        f"{what}: on a CPU vLLM does not load such a model anew; use generator/engine=vllm, which mends that, or a GPU"
        for what in found
    ]


_FACTS = {
    "vocabulary": r"org_vocab_size=(\d+)",
    "hidden size": r"embed\w*\): \w+\(\)?\(?[^\n]*?embedding_dim=(\d+)",
    "layers": r"ModuleList\(\)\(\s*\(0(?:-(\d+))?\): ",
}


def structure_problems(structure: str, config: Mapping[str, Any]) -> list[str]:
    """Where the modules that the server has differ from the model that the run trains.

    structure: vLLM's text of its modules. config: the run's config.json. What the text does not say is not compared."""
    found = []
    served = structure.partition("(")[0].strip()
    architectures = config.get("architectures") or [served]
    if served not in architectures:
        found.append(f"it serves a {served}, the run trains a {architectures[0]}")
    wanted = {
        "vocabulary": config.get("vocab_size"),
        "hidden size": config.get("hidden_size"),
        "layers": config.get("num_hidden_layers"),
    }
    for name, pattern in _FACTS.items():
        match = re.search(pattern, structure)
        if match is None or wanted[name] is None:
            continue
        number = int(match.group(1) or 0) + (name == "layers")
        if number != wanted[name]:
            found.append(f"its {name}: {number}, the run's: {wanted[name]}")
    return found
