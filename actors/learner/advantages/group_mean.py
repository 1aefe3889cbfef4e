"""A_i = r_i − mean. Dr. GRPO, arXiv 2503.20783: no division by the standard deviation, so hard groups weigh no more."""

from __future__ import annotations

import numpy as np

from headrace.actors.learner.advantages.protocol import BatchRewards


class GroupMean:
    min_rewards = 2

    def __call__(self, batch: BatchRewards) -> np.ndarray:
        return batch.by_group(lambda rewards_G: rewards_G - rewards_G.mean())
