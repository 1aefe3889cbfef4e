"""Sampling one token a row from logits: temperature, greedy, top-p, a uniform number a token. Pure tensors.

The log-probability reported is that of the distribution sampled from: log_softmax(logits / temperature), after
top-p where it is used; for greedy rows log_softmax(logits). The logits are divided, never the log-probs.
"""

from __future__ import annotations

import torch


def sample(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor | None, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids int64[n] and their log-probs float32[n].

    logits [n, V]; temperature float32[n], 0 is greedy; top_p float32[n] or None where no row uses it;
    uniform float64[n] in [0, 1): the only randomness, so a row's token does not depend on its neighbours.
    """
    logits = logits.float()
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, 1.0, temperature).unsqueeze(1)
    if top_p is not None:
        scaled = _within_top_p(scaled, torch.where(greedy, 1.0, top_p))
    logprobs = torch.log_softmax(scaled, dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    # The first entry above the threshold has a positive probability; the threshold stays below the total even after
    # rounding. So a token of probability 0 is never drawn.
    total = cumulative[:, -1]
    threshold = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total))).unsqueeze(1)
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(1)
    tokens = torch.where(greedy, logits.argmax(dim=-1), drawn)
    return tokens, logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)


def _within_top_p(scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """-inf outside the smallest set of tokens whose probabilities reach top_p (the most probable one always stays)."""
    ordered, order = scaled.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    cut = (before >= top_p.unsqueeze(1)) & (top_p < 1).unsqueeze(1)
    return scaled.masked_fill(torch.zeros_like(cut).scatter(1, order, cut), float("-inf"))
