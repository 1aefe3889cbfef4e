"""An aggregation gives every sequence of the whole batch one weight, before any forward pass.

    J = sum over sequences s of weight_s * sum over tokens t of s of J_t

Weights come from the whole batch, and a micro-batch only adds its share of the sum: the result cannot depend on how the
batch is split into micro-batches.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Aggregation(Protocol):
    def __call__(self, num_tokens_S: np.ndarray) -> np.ndarray:
        """int64[S], trained tokens of each sequence of the batch, all >= 1 → weights float64[S]."""
