"""A_i = r_i − the running mean reward of its task's class: a baseline without siblings, for groups of one. The
classical REINFORCE baseline (Williams 1992), kept by class because tasks differ in how hard they are."""

from __future__ import annotations

import numpy as np

from headrace.actors.learner.advantages.protocol import BatchRewards


class RunningMean:
    """decay: of the exponential mean, by batch in which the class occurs; a class that is new begins with the mean of
    its first batch (so that its first advantages sum to 0). The mean of before the batch is the baseline: a reward is
    not in its own. State: `state_dict`."""

    min_rewards = 1

    def __init__(self, *, decay: float = 0.9) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"advantage.decay must be in [0, 1), got {decay}; 0 is the mean of the last batch alone")
        self._decay = decay
        self._means: dict[str, float] = {}

    def __call__(self, batch: BatchRewards) -> np.ndarray:
        classes_S = np.array(batch.classes_S, dtype=object)
        advantages_S = np.zeros(len(batch.rewards_S))
        for name in dict.fromkeys(batch.classes_S):
            members = classes_S == name
            now = float(batch.rewards_S[members].mean())
            before = self._means.get(name, now)
            advantages_S[members] = batch.rewards_S[members] - before
            self._means[name] = self._decay * before + (1 - self._decay) * now
        return advantages_S

    def state_dict(self) -> dict[str, float]:
        return dict(self._means)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._means = dict(state)
