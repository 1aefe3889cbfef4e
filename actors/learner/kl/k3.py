"""k3 = e^(−ℓ) − 1 + ℓ with ℓ = log(pi / pi_ref), as a loss: GRPO's published form, arXiv 2402.03300 eq. 4.

Its value estimates KL(pi, pi_ref), never below 0; its gradient as a loss is another one's, 1 − e^(−ℓ), which saturates
for ℓ > 0 and explodes for ℓ < 0 (arXiv 2506.09477). It is here for comparisons with published GRPO; else choose k2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.actors.learner.kl.protocol import check_coefficient
from headrace.actors.learner.objectives.ratios import log_ratio

if TYPE_CHECKING:
    import torch


class K3:
    """coefficient: β; the paper has 0.04."""

    in_reward = False
    whiten = False

    def __init__(self, *, coefficient: float) -> None:
        check_coefficient(coefficient)
        self._coefficient = coefficient

    def __call__(self, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
        log_ratio_N = log_ratio(logprobs_N, reference_logprobs_N)
        return self._coefficient * ((-log_ratio_N).expm1() + log_ratio_N)
