"""The clipped surrogate of PPO on rho, without a critic: GRPO, Dr. GRPO and DAPO, which differ in what surrounds it.

    J = sum_t min(rho_t A, clip(rho_t, 1 − clip_low, 1 + clip_high) A),   rho_t = pi_t / pi_old_t

GRPO, arXiv 2402.03300 eq. 3; Dr. GRPO, 2503.20783; DAPO, 2503.14476 eq. 8 (clip_high apart). It says nothing of mu:
with one update a step rho is 1, and it is REINFORCE. The mean over tokens is the aggregation's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.actors.learner.objectives.protocol import ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.ratios import log_ratio

if TYPE_CHECKING:
    import torch


class ClippedRatio:
    """clip_low, clip_high: how far below and above 1 rho still has a gradient. There is no second bound for A < 0 and a
    large rho (dual clip)."""

    takes_weights = True

    def __init__(self, *, clip_low: float = 0.2, clip_high: float = 0.2) -> None:
        check_clips(clip_low, clip_high)
        self._clip_low = clip_low
        self._clip_high = clip_high

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        rho_N = log_ratio(tokens.logprobs_N, tokens.proximal_logprobs_N).exp()
        objective_N, clipped_N = clipped_surrogate(rho_N, tokens.advantages_N, self._clip_low, self._clip_high)
        return ObjectiveTerms(objective_N, clipped_N, masked_N=clipped_N & False)


def clipped_surrogate(
    ratio_N: torch.Tensor, advantages_N: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """→ min(ratio · A, clip(ratio) · A), float[N], and where the clip took hold, bool[N]: there it has no gradient."""
    too_high_N = (ratio_N > 1 + clip_high) & (advantages_N > 0)
    too_low_N = (ratio_N < 1 - clip_low) & (advantages_N < 0)
    bounded_N = ratio_N.masked_fill(too_high_N, 1 + clip_high).masked_fill(too_low_N, 1 - clip_low)
    return bounded_N * advantages_N, too_high_N | too_low_N


def check_clips(clip_low: float, clip_high: float) -> None:
    """Raises ValueError."""
    if not 0 <= clip_low <= 1:
        raise ValueError(f"objective.clip_low must be in [0, 1], got {clip_low}; ratios are never below 0")
    if not 0 <= clip_high < float("inf"):
        raise ValueError(f"objective.clip_high must be >= 0 and finite, got {clip_high}; 0.2 is the usual one")
