"""REINFORCE with a truncated importance weight: the default objective for data of mixed versions.

    J = sum_t sg(min(w_t, c)) * A * log pi_t,   w_t = pi_t / mu_t,   0 where w_t is outside [mask_below, mask_above]

sg stops the gradient. PipelineRL (arXiv 2509.19128) eq. 5 has the truncated weight; the mask follows IcePop.
"""

from __future__ import annotations

from headrace.actors.learner.objectives.protocol import ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.ratios import log_ratio


class IsReinforce:
    """clip: c, the largest weight. mask_below, mask_above: a token whose w lies outside has no gradient at all."""

    takes_weights = False  # it holds w

    def __init__(self, *, clip: float = 5.0, mask_below: float = 0.05, mask_above: float = 10.0) -> None:
        if not clip > 0:
            raise ValueError(f"objective.clip must be > 0, got {clip}; 5 is the default")
        if not 0 <= mask_below < 1 < mask_above:
            raise ValueError(
                f"objective needs 0 <= mask_below < 1 < mask_above, got {mask_below} and {mask_above}; on-policy "
                "tokens have weight 1 and must not be masked"
            )
        self._clip = clip
        self._mask_below = mask_below
        self._mask_above = mask_above

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        w_N = log_ratio(tokens.logprobs_N.detach(), tokens.behaviour_logprobs_N).exp()
        masked_N = (w_N < self._mask_below) | (w_N > self._mask_above)
        weight_N = w_N.clamp(max=self._clip).masked_fill(masked_N, 0.0)
        return ObjectiveTerms(
            objective_N=weight_N * tokens.advantages_N * tokens.logprobs_N,
            clipped_N=(w_N > self._clip) & ~masked_N,
            masked_N=masked_N,
        )
