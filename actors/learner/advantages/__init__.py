"""From the rewards of a group to the advantages of its members: one file a rule, all behind `protocol.Advantage`."""

from headrace.actors.learner.advantages.group_mean import GroupMean
from headrace.actors.learner.advantages.grpo import Grpo
from headrace.actors.learner.advantages.protocol import Advantage
from headrace.actors.learner.advantages.rloo import Rloo

__all__ = ["Advantage", "GroupMean", "Grpo", "Rloo"]
