"""Penalties on the reward of a session: one file each, all behind `protocol.RewardPenalty`."""

from headrace.actors.learner.penalties.protocol import RewardPenalty

__all__ = ["RewardPenalty"]
