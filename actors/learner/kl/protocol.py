"""What a KL penalty computes. Suffixes as in objectives/protocol.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class KlPenalty(Protocol):
    def __call__(self, logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor) -> torch.Tensor:
        """What each token takes off the objective J, float32[N], coefficient included; gradient through
        `logprobs_N` alone."""
