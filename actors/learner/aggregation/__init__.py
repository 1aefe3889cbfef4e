"""How the tokens' terms become one number: one file a rule, all behind `protocol.Aggregation`."""

from headrace.actors.learner.aggregation.constant import Constant
from headrace.actors.learner.aggregation.prompt_mean import PromptMean
from headrace.actors.learner.aggregation.protocol import Aggregation
from headrace.actors.learner.aggregation.sequence_mean import SequenceMean
from headrace.actors.learner.aggregation.token_mean import TokenMean

__all__ = ["Aggregation", "Constant", "PromptMean", "SequenceMean", "TokenMean"]
