"""What a token's log-probability is worth: one file an objective, all behind `protocol.Objective`."""

from headrace.actors.learner.objectives.cross_entropy import CrossEntropy
from headrace.actors.learner.objectives.is_reinforce import IsReinforce
from headrace.actors.learner.objectives.protocol import Objective, ObjectiveTerms, TrainedTokens

__all__ = ["CrossEntropy", "IsReinforce", "Objective", "ObjectiveTerms", "TrainedTokens"]
