"""Every sequence weighs the same, however long: weight_s = 1 / (sequences · tokens of s). GRPO's published form."""

from __future__ import annotations

import numpy as np


class SequenceMean:
    def __call__(self, num_tokens_S: np.ndarray, group_S: np.ndarray) -> np.ndarray:
        weights_S: np.ndarray = 1.0 / (len(num_tokens_S) * num_tokens_S.astype(np.float64))
        return weights_S
