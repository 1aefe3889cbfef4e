"""From the rewards of a batch to the advantages of its sequences: one file a rule, all behind `protocol.Advantage`."""

from headrace.actors.learner.advantages.batch import Batch
from headrace.actors.learner.advantages.by_critic import ByCritic
from headrace.actors.learner.advantages.group_mean import GroupMean
from headrace.actors.learner.advantages.grpo import Grpo
from headrace.actors.learner.advantages.protocol import Advantage, BatchRewards, Remembers
from headrace.actors.learner.advantages.rloo import Rloo
from headrace.actors.learner.advantages.running_mean import RunningMean

__all__ = ["Advantage", "Batch", "BatchRewards", "ByCritic", "GroupMean", "Grpo", "Remembers", "Rloo", "RunningMean"]
