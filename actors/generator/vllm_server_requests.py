"""Between our requests and completions and the JSON of vLLM's /inference/v1/generate. Pure; nothing is invented."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.actors.messages import Completion, Generate


class ForeignLabel(ValueError):
    """Tokens that some other weights made than those that this engine loaded. Says their label."""


def request_body(request: Generate, salt: str | None) -> dict[str, Any]:
    """A GenerateRequest. `salt`: prompts share cached prefixes where it is equal; None: all do."""
    sampling = request.sampling
    parameters: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "seed": sampling.seed,
        "logprobs": 0,
        "prompt_logprobs": 0 if request.prompt_logprobs else None,
        "detokenize": False,
        "ignore_eos": True,  # the stop tokens above are the whole truth, whatever tokenizer the server has
        "skip_reading_prefix_cache": request.fresh or None,
    }
    body: dict[str, Any] = {"token_ids": request.prompt_token_ids.tolist(), "sampling_params": parameters}
    return body if salt is None else {**body, "cache_salt": salt}


def completion(answer: dict[str, Any], request: Generate, prefix: str) -> Completion:
    """prefix: of the labels that this engine gave to its versions ("<prefix>7" is version 7).

    Raises ForeignLabel, and ValueError where vLLM left out log-probs or versions."""
    choice = answer["choices"][0]
    token_ids = [int(token) for token in choice["token_ids"] or ()]
    entries = (choice["logprobs"] or {}).get("content") or []
    if [entry["token_id"] for entry in entries] != token_ids:
        raise ValueError(f"vLLM returned {len(token_ids)} tokens and {len(entries)} log-probs that are not theirs")
    reason = choice["finish_reason"]
    return Completion(
        token_ids=np.asarray(token_ids, dtype=np.int32),
        logprobs=np.asarray([entry["logprob"] for entry in entries], dtype=np.float32),
        versions=_versions(choice["weight_versions"] or (), len(token_ids), prefix),
        finish_reason=reason if reason in ("stop", "length") else "aborted",
        prompt_logprobs=_prompt_logprobs(answer, request),
    )


def _versions(spans: Any, num_tokens: int, prefix: str) -> np.ndarray:
    versions = np.full(num_tokens, -1, dtype=np.int32)
    for span in spans:
        label = str(span["version"])
        if not label.startswith(prefix):
            raise ForeignLabel(label)
        versions[span["start"] : span["end"]] = int(label.removeprefix(prefix))
    if (versions < 0).any():
        raise ValueError("vLLM returned tokens without a weight version; vllm 0.30 or later is needed")
    return versions


def _prompt_logprobs(answer: dict[str, Any], request: Generate) -> np.ndarray:
    """float32[P - 1], or empty where none were asked for. vLLM has None for the first token."""
    if not request.prompt_logprobs:
        return np.zeros(0, dtype=np.float32)
    tokens = request.prompt_token_ids.tolist()
    found = answer["prompt_logprobs"]
    if found is None or len(found) != len(tokens):
        raise ValueError(f"vLLM returned {len(found or ())} prompt log-probs for {len(tokens)} prompt tokens")
    pairs = list(zip(tokens, found, strict=True))[1:]
    return np.asarray([entry[str(token)]["logprob"] for token, entry in pairs], dtype=np.float32)
