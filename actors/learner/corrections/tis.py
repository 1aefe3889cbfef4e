"""Truncated importance sampling: min(m, C). F. Yao et al., "Your efficient RL framework secretly brings you off-policy
RL training" (2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.actors.learner.objectives.ratios import log_ratio

if TYPE_CHECKING:
    import torch

    from headrace.actors.learner.objectives.protocol import TrainedTokens


class Tis:
    """cap: C, the largest weight."""

    kind: Literal["weight"] = "weight"

    def __init__(self, *, cap: float = 2.0) -> None:
        if not cap >= 1:
            raise ValueError(f"corrections.tis.cap must be >= 1, got {cap}; on-policy tokens have weight 1")
        self._cap = cap

    def __call__(self, tokens: TrainedTokens) -> torch.Tensor:
        return log_ratio(tokens.proximal_logprobs_N, tokens.behaviour_logprobs_N).exp().clamp(max=self._cap)
