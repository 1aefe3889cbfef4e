"""k1 = ℓ with ℓ = log(pi_old / pi_ref), taken off the reward of each token: a token is charged for what comes after it.

    A_t = A − β · sum over t' >= t of ℓ_t'

J. Schulman, "Approximating KL divergence" (2020), has the estimator, unbiased and of either sign; REINFORCE++ (arXiv
2501.03262) has it in the reward, and normalises what comes out over all tokens of the batch (`whiten`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.actors.learner.kl.protocol import check_coefficient
from headrace.actors.learner.objectives.ratios import log_ratio

if TYPE_CHECKING:
    import torch


class K1:
    """coefficient: β, in units of reward by nat. whiten: afterwards the advantages of all trained tokens of the batch
    are brought to mean 0 and standard deviation 1; with an advantage that is not scaled yet (group_mean, rloo), so that
    β is in units of the reward."""

    in_reward = True

    def __init__(self, *, coefficient: float, whiten: bool = False) -> None:
        check_coefficient(coefficient)
        self._coefficient = coefficient
        self.whiten = whiten

    def __call__(self, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
        return self._coefficient * log_ratio(logprobs_N, reference_logprobs_N)
