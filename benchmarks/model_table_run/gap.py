"""How far the log-probs that an engine reports for its samples are from those of a plain transformers forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

BOUND = 1e-4
"""largest |Δ log-prob| of one token, float32 on both sides: the order of additions explains some 1e-6. It holds for
Qwen3-MoE too, whose routing would differ by more only where two experts score the same to six digits."""
NUM_PROMPTS, NUM_TOKENS = 16, 24


@dataclass(frozen=True, slots=True)
class Sample:
    """prompt: P token ids; token_ids: N that an engine sampled at temperature 1; logprobs: N, as it reported them."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Of |Δ log-prob| over all sampled tokens."""

    largest: float
    mean: float
    num_tokens: int

    @property
    def ok(self) -> bool:
        """NaN is not."""
        return self.largest <= BOUND


def draw_prompts(vocab_size: int, seed: int = 0) -> list[tuple[int, ...]]:
    """NUM_PROMPTS of 1 to 12 tokens."""
    rng = np.random.default_rng(seed)
    return [tuple(int(t) for t in rng.integers(1, vocab_size, rng.integers(1, 13))) for _ in range(NUM_PROMPTS)]


def gap(model: nn.Module, samples: Sequence[Sample]) -> Gap:
    """Against one forward of `model` for each sample."""
    found = np.concatenate(
        [np.abs(forward_logprobs(model, s.prompt, s.token_ids) - np.asarray(s.logprobs)) for s in samples]
    )
    return Gap(float(found.max()), float(found.mean()), len(found))


def forward_logprobs(model: nn.Module, prompt: Sequence[int], token_ids: Sequence[int]) -> np.ndarray:
    """float64[N]: of each token that follows the prompt, at temperature 1."""
    ids = torch.tensor([[*prompt, *token_ids]])
    with torch.no_grad():
        logprobs = model(ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
    return logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
