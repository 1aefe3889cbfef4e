"""What an objective is given and what it gives back. Objectives are maximised; the learner negates and aggregates them.

Suffixes name the axes of a tensor, here and in the whole learner:
    N  trained tokens of one micro-batch, flat; prompt and tool output are not among them
    S  sequences (trajectories) of one micro-batch; a sequence is never split over micro-batches
    T  tokens of one sequence, trained or not
    G  members of one group
    R, L  rows of a packed micro-batch, and positions of a row
Symbols are those of the papers: pi = the policy that is trained, mu = the behaviour policy that sampled the token,
pi_old = the policy as it was when the step began (the proximal policy), A = advantage;
    w = pi / mu,   rho = pi / pi_old,   m = pi_old / mu.   With one update a step, rho is 1 and m is w without gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

MAX_ABS_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before exp: e^20 still squares within float32."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedTokens:
    """The trained tokens of one micro-batch.

    logprobs_N:            float32, log pi of each token at its session's temperature; carries the gradient
    behaviour_logprobs_N:  float32, log mu, as the engine reported it when it sampled the token
    proximal_logprobs_N:   float32, log pi_old; no gradient
    advantages_N:          float32, A
    lags_N:                int64, optimizer steps between the weights that sampled the token and pi_old; 0: the same
    sequence_N:            int64, which of the S sequences the token belongs to: 0 .. S − 1, each with tokens
    """

    logprobs_N: torch.Tensor
    behaviour_logprobs_N: torch.Tensor
    proximal_logprobs_N: torch.Tensor
    advantages_N: torch.Tensor
    lags_N: torch.Tensor
    sequence_N: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ObjectiveTerms:
    """objective_N: float32, what each token adds to J, before aggregation; carries the gradient.
    clipped_N, masked_N: bool, tokens whose weight was cut down, and tokens that were given none. A masked token
    still counts in the denominator of a mean, so that the denominator does not depend on the policy."""

    objective_N: torch.Tensor
    clipped_N: torch.Tensor
    masked_N: torch.Tensor


class Objective(Protocol):
    @property
    def takes_weights(self) -> bool:
        """Whether a weight of `corrections` may stand before it: true where it is built on rho alone, and so says
        nothing of m. What is built on w, or weighs by m itself, would weigh twice."""

    def __call__(self, tokens: TrainedTokens) -> ObjectiveTerms:
        """J by token. Must not mix tokens of different sequences, so that the split into micro-batches is free."""
