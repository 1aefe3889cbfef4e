"""Leave-one-out baseline: A_i = r_i − mean of the others = G/(G−1) · (r_i − mean). arXiv 2402.14740, section 2.3."""

from __future__ import annotations

import numpy as np

from headrace.actors.learner.advantages.protocol import BatchRewards


class Rloo:
    """Unbiased: a member's own reward is not in its baseline."""

    min_rewards = 2

    def __call__(self, batch: BatchRewards) -> np.ndarray:
        return batch.by_group(self._of_group)

    def _of_group(self, rewards_G: np.ndarray) -> np.ndarray:
        size = len(rewards_G)
        advantages_G: np.ndarray = (rewards_G - rewards_G.mean()) * (size / (size - 1))
        return advantages_G
