"""IcePop: m where low <= m <= high, else 0. Ring-1T, "Every step evolves", arXiv 2510.18855: a token on which trainer
and engine disagree too much, either way, has no gradient; the others are weighed by m."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.actors.learner.corrections.bounds import check_around_one
from headrace.actors.learner.objectives.ratios import log_ratio

if TYPE_CHECKING:
    import torch

    from headrace.actors.learner.objectives.protocol import TrainedTokens


class Icepop:
    """low, high: the paper's alpha and beta; both belong to what is kept."""

    kind: Literal["weight"] = "weight"

    def __init__(self, *, low: float = 0.5, high: float = 5.0) -> None:
        check_around_one("icepop", low, high)
        self._low = low
        self._high = high

    def __call__(self, tokens: TrainedTokens) -> torch.Tensor:
        m_N = log_ratio(tokens.proximal_logprobs_N, tokens.behaviour_logprobs_N).exp()
        return m_N.masked_fill((m_N < self._low) | (m_N > self._high), 0.0)
