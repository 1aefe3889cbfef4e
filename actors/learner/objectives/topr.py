"""Tapered off-policy REINFORCE: what was good is learned as it is, what was bad no more than the policy still does it.

    J = sum_t sg(u_i) * A * log pi_t,   u_i = 1 where A > 0, clip(prod_t pi_t / mu_t, 0, 1) where A <= 0

sg stops the gradient. arXiv 2503.14286: its reward R, whose sign decides, is the factor of the gradient with the
baseline taken off, so here A. The product is over all trained tokens of the sequence.
"""

from __future__ import annotations

import torch

from headrace.actors.learner.objectives.protocol import MAX_ABS_LOG_RATIO, ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.ratios import sequence_sums


class Topr:
    takes_weights = False  # it holds w

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        log_w_N = tokens.logprobs_N.detach() - tokens.behaviour_logprobs_N
        log_w_S = sequence_sums(log_w_N, tokens.sequence_N).clamp(-MAX_ABS_LOG_RATIO, MAX_ABS_LOG_RATIO)
        bad_N = tokens.advantages_N <= 0
        tapered_N = log_w_S.clamp(max=0.0).exp()[tokens.sequence_N]
        weight_N = torch.where(bad_N, tapered_N, torch.ones_like(tapered_N))
        return ObjectiveTerms(
            objective_N=weight_N * tokens.advantages_N * tokens.logprobs_N,
            clipped_N=bad_N & (log_w_S > 0)[tokens.sequence_N],
            masked_N=bad_N & False,
        )
