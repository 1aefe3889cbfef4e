"""An aggregation gives every sequence of an optimizer update one weight, before any forward pass.

    J = sum over sequences s of weight_s * sum over tokens t of s of J_t

Weights come from all sequences of the update, on whatever rank they are, and a micro-batch only adds its share of the
sum: the result cannot depend on how they are split into micro-batches or ranks.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Aggregation(Protocol):
    def __call__(self, num_tokens_S: np.ndarray, group_S: np.ndarray) -> np.ndarray:
        """int64[S], trained tokens of each sequence, all >= 1, and int64[S], its group (any numbers) → float64[S]."""
