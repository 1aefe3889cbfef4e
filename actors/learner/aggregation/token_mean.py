"""Every trained token of the batch weighs the same: weight_s = 1 / (tokens of the batch). The default; DAPO eq. 12."""

from __future__ import annotations

import numpy as np


class TokenMean:
    def __call__(self, num_tokens_S: np.ndarray, group_S: np.ndarray) -> np.ndarray:
        return np.full(len(num_tokens_S), 1.0 / num_tokens_S.sum())
