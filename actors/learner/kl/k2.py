"""k2 = ½ℓ² with ℓ = log(pi / pi_ref), as a loss: on tokens that pi samples, its gradient is that of KL(pi, pi_ref).

J. Schulman, "Approximating KL divergence" (2020), has the estimator; that k2 is the one whose gradient is right as a
loss is shown in arXiv 2506.09477.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.actors.learner.kl.protocol import check_coefficient
from headrace.actors.learner.objectives.ratios import log_ratio

if TYPE_CHECKING:
    import torch


class K2:
    """coefficient: β, the weight of the penalty beside the reward; 0.01 to 0.1 holds a small model's drift."""

    in_reward = False
    whiten = False

    def __init__(self, *, coefficient: float) -> None:
        check_coefficient(coefficient)
        self._coefficient = coefficient

    def __call__(self, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
        return self._coefficient * 0.5 * log_ratio(logprobs_N, reference_logprobs_N) ** 2
