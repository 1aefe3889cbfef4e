"""Penalties on the reward of a session: one file each, all behind `protocol.RewardPenalty`."""

from headrace.actors.learner.penalties.length import ConcaveLength
from headrace.actors.learner.penalties.overlong import Overlong
from headrace.actors.learner.penalties.protocol import RewardPenalty

__all__ = ["ConcaveLength", "Overlong", "RewardPenalty"]
