"""A learner of several processes, its ranks: each holds a part of every weight (FSDP2) and trains on a part of every
batch.

Rank 0 is the learner, the only one that others know. What it does with the weights it announces, and the other ranks do
the same at the same time, as each step of it is a meeting of all.
"""

from headrace.actors.learner.ranks.protocol import ALONE, Ranks

__all__ = ["ALONE", "Ranks"]
