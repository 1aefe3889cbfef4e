"""Off-policy sequence masking: a sequence is left out where A < 0 and mean_t log(pi_old_t / pi_t) > delta.

DeepSeek-V3.2, arXiv 2512.02556 eq. 9: a model learns most from its own mistakes; those of a policy that it has left far
behind mislead it. That paper's pi_old is "the sampling probability directly returned by the inference framework": mu
here, so that the mask sees staleness and engine mismatch together (policy "behaviour"). "proximal" takes pi_old as this
code has it, the drift inside a step alone: with one update a step it never masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.actors.learner.objectives.ratios import log_ratio, sequence_means

if TYPE_CHECKING:
    import torch

    from headrace.actors.learner.objectives.protocol import TrainedTokens


class Opsm:
    """delta: in nats by token. Where advantages differ by token (a KL in the reward, a critic), A is their mean."""

    kind: Literal["mask"] = "mask"

    def __init__(self, *, delta: float = 0.5, policy: Literal["behaviour", "proximal"] = "behaviour") -> None:
        if not 0 < delta < float("inf"):
            raise ValueError(f"corrections.opsm.delta must be > 0 and finite, got {delta}; 0.5 is the default")
        if policy not in ("behaviour", "proximal"):
            raise ValueError(f"corrections.opsm.policy must be behaviour or proximal, got {policy!r}")
        self._delta = delta
        self._policy = policy

    def __call__(self, tokens: TrainedTokens) -> torch.Tensor:
        old_N = tokens.behaviour_logprobs_N if self._policy == "behaviour" else tokens.proximal_logprobs_N
        distance_S = sequence_means(log_ratio(old_N, tokens.logprobs_N.detach()), tokens.sequence_N)
        left_out_S = (sequence_means(tokens.advantages_N, tokens.sequence_N) < 0) & (distance_S > self._delta)
        return (~left_out_S).to(old_N.dtype)[tokens.sequence_N]
