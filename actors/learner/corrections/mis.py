"""Masked importance sampling: 0 outside [low, high], else 1. J. Liu, Y. Li et al., "When speed kills stability" (2025).

level "token": by m of the token. level "sequence": by the PRODUCT of m over the sequence's tokens, which is the ratio
of the probabilities of the whole sequence, as in that paper: the longer the sequence, the further from 1. For the
geometric mean, which does not depend on length, see `geo`. The paper's weight is mask times m: add `tis` for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from headrace.actors.learner.corrections.bounds import check_around_one
from headrace.actors.learner.objectives.ratios import log_ratio, sequence_sums

if TYPE_CHECKING:
    import torch

    from headrace.actors.learner.objectives.protocol import TrainedTokens


class Mis:
    """low, high: both belong to what is kept."""

    kind: Literal["mask"] = "mask"

    def __init__(self, *, low: float = 0.5, high: float = 2.0, level: Literal["token", "sequence"] = "token") -> None:
        check_around_one("mis", low, high)
        if level not in ("token", "sequence"):
            raise ValueError(f"corrections.mis.level must be token or sequence, got {level!r}")
        self._log_low = math.log(low) if low > 0 else -math.inf
        self._log_high = math.log(high)
        self._level = level

    def __call__(self, tokens: TrainedTokens) -> torch.Tensor:
        log_m_N = log_ratio(tokens.proximal_logprobs_N, tokens.behaviour_logprobs_N)
        if self._level == "sequence":
            log_m_N = sequence_sums(log_m_N, tokens.sequence_N)[tokens.sequence_N]
        return ((log_m_N >= self._log_low) & (log_m_N <= self._log_high)).to(log_m_N.dtype)
