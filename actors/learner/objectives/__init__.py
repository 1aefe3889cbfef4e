"""What a token's log-probability is worth: one file an objective, all behind `protocol.Objective`."""

from headrace.actors.learner.objectives.cispo import Cispo
from headrace.actors.learner.objectives.clipped_ratio import ClippedRatio
from headrace.actors.learner.objectives.cross_entropy import CrossEntropy
from headrace.actors.learner.objectives.decoupled_ppo import DecoupledPpo
from headrace.actors.learner.objectives.dppo import Dppo
from headrace.actors.learner.objectives.gspo import Gspo
from headrace.actors.learner.objectives.is_reinforce import IsReinforce
from headrace.actors.learner.objectives.protocol import Objective, ObjectiveTerms, TrainedTokens
from headrace.actors.learner.objectives.topr import Topr

__all__ = [
    "Cispo",
    "ClippedRatio",
    "CrossEntropy",
    "DecoupledPpo",
    "Dppo",
    "Gspo",
    "IsReinforce",
    "Objective",
    "ObjectiveTerms",
    "Topr",
    "TrainedTokens",
]
