"""Between our requests and completions and vLLM's. Pure translation: nothing is sent, nothing is invented."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.actors.messages import Completion, Generate

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams


def sampling_params(request: Generate) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        seed=sampling.seed,
        logprobs=0,
        prompt_logprobs=0 if request.prompt_logprobs else None,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=request.fresh or None,
    )


def completion(output: RequestOutput) -> Completion:
    """Raises ValueError where vLLM left out log-probs or versions: they are never invented."""
    choice = output.outputs[0]
    token_ids = list(choice.token_ids)
    if choice.logprobs is None or len(choice.logprobs) != len(token_ids):
        raise ValueError(f"vLLM returned {len(token_ids)} tokens without a log-prob for each; logprobs=0 was asked for")
    logprobs = [entry[token].logprob for token, entry in zip(token_ids, choice.logprobs, strict=True)]
    versions = np.full(len(token_ids), -1, dtype=np.int32)
    for span in choice.weight_versions or ():
        versions[span.start : span.end] = int(span.version)
    if (versions < 0).any():
        raise ValueError("vLLM returned tokens without a weight version; vllm 0.30 or later is needed")
    reason = choice.finish_reason
    return Completion(
        token_ids=np.asarray(token_ids, dtype=np.int32),
        logprobs=np.asarray(logprobs, dtype=np.float32),
        versions=versions,
        finish_reason=reason if reason in ("stop", "length") else "aborted",
        prompt_logprobs=_prompt_logprobs(output),
    )


def _prompt_logprobs(output: RequestOutput) -> np.ndarray:
    """float32[P - 1], or empty where none were asked for. vLLM has None for the first token."""
    found = output.prompt_logprobs
    if found is None:
        return np.zeros(0, dtype=np.float32)
    pairs = list(zip(output.prompt_token_ids, found, strict=True))[1:]
    return np.asarray([entry[token].logprob for token, entry in pairs], dtype=np.float32)
