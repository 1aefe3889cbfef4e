"""The clipped surrogate around pi_old, weighed for the distance from mu to pi_old: stale data, and a trust region that
does not pull back to it.

    J = sum_t sg(min(m_t, weight_cap)) * min(rho_t A, clip(rho_t, 1 − clip_low, 1 + clip_high) A)

J. Hilton et al., arXiv 2110.00641; AReaL, 2505.24298, has it for language models. pi_old is recomputed as the step
begins (a forward pass where a step has several updates), or, by AReaL's log-linear approximation, taken one version
behind the weights that train, at v_old = v_theta − 1, between mu and them:

    log pi_old = log mu + alpha * sg(log pi − log mu),   alpha = (v_old − v_mu) / (v_theta − v_mu) = (lag − 1) / lag
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.actors.learner.objectives.clipped_ratio import check_clips, clipped_surrogate
from headrace.actors.learner.objectives.protocol import ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.ratios import log_ratio

if TYPE_CHECKING:
    import torch


class DecoupledPpo:
    """clip_low, clip_high: of rho. weight_cap: C, the largest m. proximal: where pi_old comes from."""

    takes_weights = False  # it holds m

    def __init__(
        self,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        weight_cap: float = 5.0,
        proximal: Literal["recomputed", "interpolated"] = "recomputed",
    ) -> None:
        check_clips(clip_low, clip_high)
        if not 1 <= weight_cap < float("inf"):
            raise ValueError(f"objective.weight_cap must be >= 1, got {weight_cap}; on-policy tokens have weight 1")
        if proximal not in ("recomputed", "interpolated"):
            raise ValueError(f"objective.proximal must be recomputed or interpolated, got {proximal!r}")
        self._clip_low = clip_low
        self._clip_high = clip_high
        self._weight_cap = weight_cap
        self._proximal = proximal

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        old_N = tokens.proximal_logprobs_N if self._proximal == "recomputed" else interpolated(tokens)
        m_N = log_ratio(old_N, tokens.behaviour_logprobs_N).exp()
        rho_N = log_ratio(tokens.logprobs_N, old_N).exp()
        surrogate_N, clipped_N = clipped_surrogate(rho_N, tokens.advantages_N, self._clip_low, self._clip_high)
        return ObjectiveTerms(
            objective_N=m_N.clamp(max=self._weight_cap) * surrogate_N,
            clipped_N=clipped_N | (m_N > self._weight_cap),
            masked_N=clipped_N & False,
        )


def interpolated(tokens: TrainedTokens) -> torch.Tensor:
    """log pi_old one version behind, float[N], without gradient: log mu at lag 1, log pi at lag 0 (alpha = 1)."""
    lags_N = tokens.lags_N.to(tokens.logprobs_N.dtype)
    alpha_N = ((lags_N - 1) / lags_N.clamp(min=1)).masked_fill(tokens.lags_N == 0, 1.0)
    mu_N = tokens.behaviour_logprobs_N
    return mu_N + alpha_N * (tokens.logprobs_N.detach() - mu_N)
