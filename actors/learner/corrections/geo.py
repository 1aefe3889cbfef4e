"""Geometric mask: a sequence is left out where exp(mean_t log m_t) lies outside [low, high]. The mean does not grow
with the length, so that one bound serves short and long sequences. J. Liu, Y. Li et al., "When speed kills stability"
(2025), part 3, and the rollout correction of verl.

Only tokens of lag 0 are looked at: there m is the engine's mismatch alone, and bounds this narrow mean something. On
older tokens m holds staleness too, which no such bound would pass. A sequence without tokens of lag 0 is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.actors.learner.corrections.bounds import check_around_one
from headrace.actors.learner.objectives.ratios import log_ratio, sequence_sums

if TYPE_CHECKING:
    import torch

    from headrace.actors.learner.objectives.protocol import TrainedTokens


class Geo:
    """low, high: both belong to what is kept."""

    kind: Literal["mask"] = "mask"

    def __init__(self, *, low: float = 0.999, high: float = 1.001) -> None:
        check_around_one("geo", low, high)
        self._low = low
        self._high = high

    def __call__(self, tokens: TrainedTokens) -> torch.Tensor:
        log_m_N = log_ratio(tokens.proximal_logprobs_N, tokens.behaviour_logprobs_N)
        same_N = (tokens.lags_N == 0).to(log_m_N.dtype)
        counts_S = sequence_sums(same_N, tokens.sequence_N).clamp(min=1)
        mean_S = (sequence_sums(log_m_N * same_N, tokens.sequence_N) / counts_S).exp()
        return ((mean_S >= self._low) & (mean_S <= self._high)).to(log_m_N.dtype)[tokens.sequence_N]
