"""Veto: a sequence with any token of m < below is left out whole. J. Liu, Y. Li et al., "When speed kills stability"
(2025), and the rollout correction of verl: one token that the trainer holds for impossible spoils what follows it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from headrace.actors.learner.corrections.bounds import LEAST_RATIO
from headrace.actors.learner.objectives.ratios import log_ratio, sequence_sums

if TYPE_CHECKING:
    import torch

    from headrace.actors.learner.objectives.protocol import TrainedTokens


class Veto:
    """below: the smallest m that is still kept."""

    kind: Literal["mask"] = "mask"

    def __init__(self, *, below: float = 1e-4) -> None:
        if not LEAST_RATIO < below < 1:
            raise ValueError(
                f"corrections.veto.below must be in ({LEAST_RATIO:.2g}, 1), got {below}; ratios are clamped to "
                f"{LEAST_RATIO:.2g} from below, and 1 is on policy"
            )
        self._log_below = math.log(below)

    def __call__(self, tokens: TrainedTokens) -> torch.Tensor:
        log_m_N = log_ratio(tokens.proximal_logprobs_N, tokens.behaviour_logprobs_N)
        impossible_N = (log_m_N < self._log_below).to(log_m_N.dtype)
        return (sequence_sums(impossible_N, tokens.sequence_N)[tokens.sequence_N] == 0).to(log_m_N.dtype)
