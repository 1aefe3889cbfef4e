"""What a correction is given and gives back. It looks at m = pi_old / mu, the distance between the policy that trains
and the ones that sampled: on tokens of lag 0 the engine's mismatch alone, on older ones times staleness.

A *weight* multiplies the objective of a token; a *mask* keeps it (1) or leaves it out (0). The product of all goes
before the objective. Weights are refused before objectives that weigh by w or m themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from headrace.actors.learner.objectives.protocol import TrainedTokens

Kind = Literal["weight", "mask"]


class Correction(Protocol):
    @property
    def kind(self) -> Kind: ...

    def __call__(self, tokens: TrainedTokens) -> torch.Tensor:
        """float32[N], >= 0, without gradient; 0 or 1 from a mask. Must not mix tokens of different sequences."""
