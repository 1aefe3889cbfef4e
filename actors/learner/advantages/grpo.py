"""A_i = (r_i − mean) / (std + epsilon), std with ddof 1. GRPO, arXiv 2402.03300 eq. 4.1.1."""

from __future__ import annotations

import numpy as np

from headrace.actors.learner.advantages.epsilon import check_epsilon
from headrace.actors.learner.advantages.protocol import BatchRewards


class Grpo:
    """epsilon keeps a group whose rewards differ by rounding alone from getting advantages of one."""

    min_rewards = 2

    def __init__(self, *, epsilon: float = 1e-6) -> None:
        self._epsilon = check_epsilon(epsilon)

    def __call__(self, batch: BatchRewards) -> np.ndarray:
        return batch.by_group(self._of_group)

    def _of_group(self, rewards_G: np.ndarray) -> np.ndarray:
        advantages_G: np.ndarray = (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + self._epsilon)
        return advantages_G
