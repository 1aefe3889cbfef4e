"""Every group weighs the same, and within it every token: weight_s = 1 / (groups · tokens of the group). ScaleRL, arXiv
2510.13786, compares it with the others."""

from __future__ import annotations

import numpy as np


class PromptMean:
    def __call__(self, num_tokens_S: np.ndarray, group_S: np.ndarray) -> np.ndarray:
        _, group_S = np.unique(group_S, return_inverse=True)
        tokens_G = np.bincount(group_S, weights=num_tokens_S.astype(np.float64))
        weights_S: np.ndarray = 1.0 / (len(tokens_G) * tokens_G[group_S])
        return weights_S
