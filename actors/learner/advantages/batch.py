"""A_i = (r_i − mean of its group) / (std of these differences over the batch + epsilon). REINFORCE++ with a group
baseline, arXiv 2501.03262 section 3.2; ScaleRL, arXiv 2510.13786: hard and easy groups are scaled alike."""

from __future__ import annotations

import numpy as np

from headrace.actors.learner.advantages.epsilon import check_epsilon
from headrace.actors.learner.advantages.group_mean import GroupMean
from headrace.actors.learner.advantages.protocol import BatchRewards


class Batch:
    """epsilon keeps a batch of equal rewards at 0."""

    min_rewards = 2

    def __init__(self, *, epsilon: float = 1e-6) -> None:
        self._epsilon = check_epsilon(epsilon)

    def __call__(self, batch: BatchRewards) -> np.ndarray:
        centred_S = GroupMean()(batch)
        advantages_S: np.ndarray = centred_S / (centred_S.std() + self._epsilon)
        return advantages_S
