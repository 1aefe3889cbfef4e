"""A_i = r_i − mean. Dr. GRPO, arXiv 2503.20783: no division by the standard deviation, so hard groups weigh no more."""

from __future__ import annotations

import numpy as np


class GroupMean:
    min_rewards = 2

    def __call__(self, rewards_G: np.ndarray) -> np.ndarray:
        advantages_G: np.ndarray = rewards_G - rewards_G.mean()
        return advantages_G
