"""Penalties that keep the policy near a frozen reference: the weights with which the `rl` stage began."""

from headrace.actors.learner.kl.k1 import K1
from headrace.actors.learner.kl.k2 import K2
from headrace.actors.learner.kl.k3 import K3
from headrace.actors.learner.kl.protocol import KlPenalty

__all__ = ["K1", "K2", "K3", "KlPenalty"]
