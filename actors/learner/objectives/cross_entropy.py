"""Next-token cross-entropy: J = sum_t log pi_t. The objective of pre-training; advantages and mu are not looked at."""

from __future__ import annotations

from headrace.actors.learner.objectives.protocol import ObjectiveTerms, TrainedTokens


class CrossEntropy:
    takes_weights = False

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        none_N = tokens.logprobs_N.detach().isnan() & False
        return ObjectiveTerms(objective_N=tokens.logprobs_N, clipped_N=none_N, masked_N=none_N)
