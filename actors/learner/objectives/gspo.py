"""The clipped surrogate with one ratio a sequence: the geometric mean of its tokens' rho.

    s_i = exp(mean_t log rho_t);   J_t = min(s_t A, clip(s_t, 1 − clip_low, 1 + clip_high) A) at each token t of i,
    s_t = sg(s_i) * pi_t / sg(pi_t): the value of s_i, with a gradient through the token's own pi_t

GSPO, arXiv 2507.18071: its GSPO-token form, which has the value, the clipping and, summed over a sequence, the gradient
of eq. 5 where a sequence has one advantage. Here a token may also have its own advantage, and a correction that leaves
a token out leaves out the gradient of that token. With sequence_mean the sum over t is eq. 5's mean.
"""

from __future__ import annotations

from headrace.actors.learner.objectives.clipped_ratio import check_clips, clipped_surrogate
from headrace.actors.learner.objectives.protocol import MAX_ABS_LOG_RATIO, ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.ratios import spread_means


class Gspo:
    """clip_low, clip_high: of s_i, which a mean holds near 1: hundreds of times smaller than those of a token."""

    takes_weights = True

    def __init__(self, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> None:
        check_clips(clip_low, clip_high)
        self._clip_low = clip_low
        self._clip_high = clip_high

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        held_N = tokens.logprobs_N.detach()
        log_s_N = spread_means(held_N - tokens.proximal_logprobs_N, tokens.sequence_N)
        own_N = tokens.logprobs_N - held_N  # 0, with the gradient of log pi
        s_N = (log_s_N + own_N).clamp(-MAX_ABS_LOG_RATIO, MAX_ABS_LOG_RATIO).exp()
        objective_N, clipped_N = clipped_surrogate(s_N, tokens.advantages_N, self._clip_low, self._clip_high)
        return ObjectiveTerms(objective_N, clipped_N, masked_N=clipped_N & False)
