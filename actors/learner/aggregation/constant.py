"""Every token weighs the same in every batch: weight_s = 1 / (sequences · tokens). Dr. GRPO, arXiv 2503.20783: a
divisor that depends on no length favours neither short nor long answers."""

from __future__ import annotations

import numpy as np


class Constant:
    """tokens: the constant, such as the most tokens that a sequence may have."""

    def __init__(self, *, tokens: int) -> None:
        if tokens < 1:
            raise ValueError(f"aggregation.tokens must be >= 1, got {tokens}; the most that one sequence may have")
        self._tokens = tokens

    def __call__(self, num_tokens_S: np.ndarray, group_S: np.ndarray) -> np.ndarray:
        return np.full(len(num_tokens_S), 1.0 / (len(num_tokens_S) * self._tokens))
