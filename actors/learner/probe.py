"""The log-prob probe: fixed prompts, no cached prefix, one version, and the gap between the engine's log-probs and
ours.

It bounds what the engine's kernels and the published precision add, apart from staleness. Asks one generator;
computes in the learner's worker thread. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.actors.learner.figures.mismatch import Gap, gap
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.update_probe import ordinary_tokens
from headrace.actors.messages import Completion, Generate
from headrace.actors.session import NO_VERSION, Sampling
from headrace.transport import Context


class LogprobProbe:
    """prompts: called once for the prompts' token ids (PromptTokenIds gives those of the run's own tasks); None makes
    `num_prompts` of `prompt_tokens` random ids, where a half-precision engine is at its least precise.
    max_tokens: sampled after each prompt, at temperature 1."""

    def __init__(
        self,
        *,
        prompts: Callable[[], Sequence[Sequence[int]]] | None = None,
        num_prompts: int = 8,
        prompt_tokens: int = 12,
        max_tokens: int = 16,
        timeout_s: float = 120.0,
    ) -> None:
        if min(num_prompts, prompt_tokens, max_tokens) < 1:
            raise ValueError("probe.num_prompts, prompt_tokens and max_tokens must be >= 1")
        self._prompts = prompts
        self._num_prompts = num_prompts
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s

    def prompt_ids(self, tokenizer: Any, vocab_size: int) -> list[np.ndarray]:
        """int32[P] each; the same at every call. Blocks: reads a tokenizer."""
        if self._prompts is not None:
            return [np.asarray(token_ids, dtype=np.int32) for token_ids in self._prompts()]
        ordinary = ordinary_tokens(min(vocab_size, len(tokenizer)), tokenizer.all_special_ids)
        rng = np.random.default_rng(0)
        return [rng.choice(ordinary, self._prompt_tokens) for _ in range(self._num_prompts)]

    async def run(
        self,
        context: Context,
        prompts: Sequence[np.ndarray],
        version: int,
        logprobs: Callable[[list[TrainSequence]], Any],
        *,
        role: str = "generator",
    ) -> Gap:
        """The gap over tokens that `version` sampled. `logprobs` awaits to the learner's own, one array a sequence."""
        group = context.group(role)
        requests = [
            Generate(
                session_id=f"probe-{version}-{number}",
                prompt_token_ids=prompt,
                sampling=Sampling(temperature=1.0, max_tokens=self._max_tokens, seed=number),
                fresh=True,
            )
            for number, prompt in enumerate(prompts)
        ]
        completions = await asyncio.gather(*(group.ask(request, timeout_s=self._timeout_s) for request in requests))
        found = (probe_sequence(p, c, version) for p, c in zip(prompts, completions, strict=True))
        sequences = [sequence for sequence in found if sequence is not None]
        if not sequences:
            return gap(np.zeros(0), np.zeros(0))
        ours = await logprobs(sequences)
        theirs = [s.logprobs[s.loss_mask] for s in sequences]
        return gap(np.concatenate(ours), np.concatenate(theirs))


def probe_sequence(prompt: np.ndarray, completion: Completion, version: int) -> TrainSequence | None:
    """Prompt and completion as one sequence whose trained tokens are those of `version`; None where there is none."""
    wanted = (completion.versions == version) & np.isfinite(completion.logprobs)
    if not len(prompt) or not wanted.any():
        return None
    before = len(prompt)
    return TrainSequence(
        token_ids=np.concatenate([prompt, completion.token_ids]).astype(np.int32),
        loss_mask=np.concatenate([np.zeros(before, dtype=np.bool_), wanted]),
        logprobs=np.concatenate([np.zeros(before, dtype=np.float32), completion.logprobs]).astype(np.float32),
        versions=np.concatenate([np.full(before, NO_VERSION, dtype=np.int32), completion.versions]).astype(np.int32),
        advantage=0.0,
    )
