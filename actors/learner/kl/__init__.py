"""Penalties that keep the policy near a frozen reference: the weights with which the `rl` stage began."""

from headrace.actors.learner.kl.k2 import K2
from headrace.actors.learner.kl.protocol import KlPenalty

__all__ = ["K2", "KlPenalty"]
