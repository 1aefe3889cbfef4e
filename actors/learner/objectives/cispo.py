"""REINFORCE with a clipped importance weight, which never takes a token's gradient away.

    J = sum_t sg(clip(r_t, 1 − clip_low, 1 + clip_high)) * A * log pi_t,   r = w = pi / mu, or r = rho = pi / pi_old

sg stops the gradient. MiniMax-M1, arXiv 2506.13585; its r divides by the policy that sampled, which here is mu.
ScaleRL, 2510.13786, names the cap itself, 1 + clip_high.
"""

from __future__ import annotations

from typing import Literal

from headrace.actors.learner.objectives.protocol import ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.ratios import log_ratio


class Cispo:
    """clip_high: the largest weight is 1 + clip_high. clip_low: the smallest is 1 − clip_low; None: none, as published.
    ratio: "w", or "rho", before which a weight of `corrections` may stand."""

    def __init__(
        self, *, clip_high: float = 5.0, clip_low: float | None = None, ratio: Literal["w", "rho"] = "w"
    ) -> None:
        if not 0 <= clip_high < float("inf"):
            raise ValueError(f"objective.clip_high must be >= 0 and finite, got {clip_high}; 5 is the default")
        if clip_low is not None and not 0 <= clip_low <= 1:
            raise ValueError(f"objective.clip_low must be in [0, 1] or null, got {clip_low}; null bounds nothing")
        if ratio not in ("w", "rho"):
            raise ValueError(f"objective.ratio must be w (pi / mu) or rho (pi / pi_old), got {ratio!r}")
        self._smallest = 0.0 if clip_low is None else 1 - clip_low
        self._largest = 1 + clip_high
        self._ratio = ratio

    @property
    def takes_weights(self) -> bool:
        return self._ratio == "rho"

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        below_N = tokens.behaviour_logprobs_N if self._ratio == "w" else tokens.proximal_logprobs_N
        ratio_N = log_ratio(tokens.logprobs_N.detach(), below_N).exp()
        clipped_N = (ratio_N < self._smallest) | (ratio_N > self._largest)
        weight_N = ratio_N.clamp(self._smallest, self._largest)
        return ObjectiveTerms(
            objective_N=weight_N * tokens.advantages_N * tokens.logprobs_N,
            clipped_N=clipped_N,
            masked_N=clipped_N & False,
        )
