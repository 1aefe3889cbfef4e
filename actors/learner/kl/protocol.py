"""What a KL penalty computes. Suffixes as in objectives/protocol.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class KlPenalty(Protocol):
    @property
    def in_reward(self) -> bool:
        """Whether it is taken off the reward of each token (so that a token is charged for what comes after it), or off
        the objective."""

    @property
    def whiten(self) -> bool:
        """Whether advantages are brought to mean 0 and standard deviation 1 over all tokens of the batch once it is
        taken off. Only where in_reward."""

    def __call__(self, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
        """What each token takes off, float32[N], coefficient included. logprobs_N: log pi, through which alone the
        gradient goes; log pi_old, without gradient, where in_reward."""


def check_coefficient(coefficient: float) -> None:
    """Raises ValueError."""
    if not 0 < coefficient < float("inf"):
        raise ValueError(
            f"kl.coefficient must be > 0 and finite, got {coefficient}; for no penalty choose learner/kl=none"
        )
