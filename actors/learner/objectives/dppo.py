"""A trust region in probabilities rather than ratios: rare tokens may move, frequent ones not far.

    J = sum_t keep_t * w_t * A − drift * (log w_t)^2
    keep_t = 0 where A > 0 and pi_t − mu_t > threshold, or A < 0 and pi_t − mu_t < −threshold; else 1

w has its gradient. DPPO (Binary-TV), arXiv 2602.04879: |pi_t − mu_t| is the total variation between the two policies
seen as "this token or another". The quadratic term, which is not in the paper, holds what the mask lets go.
"""

from __future__ import annotations

from headrace.actors.learner.objectives.protocol import ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.ratios import log_ratio


class Dppo:
    """threshold: of pi − mu, a difference of probabilities. drift: the weight of the quadratic term; 0: none."""

    takes_weights = False  # it holds w

    def __init__(self, *, threshold: float = 0.2, drift: float = 1e-3) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(
                f"objective.threshold must be in (0, 1], got {threshold}; probabilities differ by 1 at most"
            )
        if not 0 <= drift < float("inf"):
            raise ValueError(f"objective.drift must be >= 0 and finite, got {drift}; 1e-3 is the default")
        self._threshold = threshold
        self._drift = drift

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        log_w_N = log_ratio(tokens.logprobs_N, tokens.behaviour_logprobs_N)
        moved_N = tokens.logprobs_N.detach().exp() - tokens.behaviour_logprobs_N.exp()
        too_high_N = (tokens.advantages_N > 0) & (moved_N > self._threshold)
        too_low_N = (tokens.advantages_N < 0) & (moved_N < -self._threshold)
        masked_N = too_high_N | too_low_N
        gain_N = (log_w_N.exp() * tokens.advantages_N).masked_fill(masked_N, 0.0)
        return ObjectiveTerms(
            objective_N=gain_N - self._drift * log_w_N**2, clipped_N=masked_N & False, masked_N=masked_N
        )
