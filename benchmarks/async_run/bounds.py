"""What is possible at most, and the lag that should suffice: the arithmetic beside the simulation. Pure.

Notation: B sessions a batch in groups of G, lengths of mean L tokens, S slots that decode a token every `token_s`: the
generation rate is S / token_s, the training rate is the learner's own, in tokens per second too.

`bound`       min(generation, training): both work all the time on what will be trained.

`sync_bound`  A step of synchronous mode is a round of generation and then a step of training, one after the other:

                  B·L / (E[M] + B·L / training),    M = when the last of B sessions ends on S slots

              where a session starts as soon as a slot is free, in the order of issue (list scheduling). With S ≥ B,
              M is the slowest of B sessions. With fewer slots no closed form exists for lognormal lengths; E[M] is
              computed from its definition: the mean over many drawn batches, which converges to it. It needs no
              actor, message or clock. Engines that share the slots are one pool: nobody waits while one is free.

`rule_lag`    algorithms.md: η ≈ 1 + E[slowest of a group] / step time, rounded up to whole versions. The step time is
              B·L / bound.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from async_run.lengths import Lengths

_DRAWN_GROUPS = 20_000
_DRAWN_BATCHES = 400
_SEED = 20261203


@dataclass(frozen=True, slots=True)
class Machine:
    """slots: sessions that decode at once, over all engines. token_s: a decode step. training: the learner's tokens per
    second."""

    slots: int
    token_s: float
    training: float

    @property
    def generation(self) -> float:
        return self.slots / self.token_s

    @property
    def bound(self) -> float:
        return min(self.generation, self.training)


def mean_tokens(lengths: Lengths) -> float:
    """L, of the lengths as they are drawn."""
    if not lengths.sigma:
        return float(lengths.mean_tokens)
    middles = (np.arange(1_000_000) + 0.5) / 1_000_000
    return float(np.mean([lengths.at(q) for q in middles[::10]]))


def slowest_of_group_s(lengths: Lengths, machine: Machine, group_size: int) -> float:
    drawn = lengths.draw(np.random.default_rng(_SEED), (_DRAWN_GROUPS, group_size))
    return float(drawn.max(axis=1).mean()) * machine.token_s


def step_s(lengths: Lengths, machine: Machine, batch_sessions: int) -> float:
    """Of a run at its bound."""
    return batch_sessions * mean_tokens(lengths) / machine.bound


def rule_lag(lengths: Lengths, machine: Machine, *, batch_sessions: int, group_size: int) -> int:
    slowest_s = slowest_of_group_s(lengths, machine, group_size)
    return math.ceil(1 + slowest_s / step_s(lengths, machine, batch_sessions) - 1e-9)


def sync_bound(lengths: Lengths, machine: Machine, batch_sessions: int) -> float:
    """Tokens per second."""
    drawn = lengths.draw(np.random.default_rng(_SEED), (_DRAWN_BATCHES, batch_sessions))
    rounds_s = [last_end(batch, machine.slots) * machine.token_s for batch in drawn]
    tokens = batch_sessions * mean_tokens(lengths)
    return tokens / (float(np.mean(rounds_s)) + tokens / machine.training)


def last_end(lengths: np.ndarray, slots: int) -> float:
    """When the last of these ends, in tokens: each starts in the first free slot, in order."""
    ends = [float(length) for length in lengths[:slots]]
    heapq.heapify(ends)
    for length in lengths[slots:]:
        heapq.heapreplace(ends, ends[0] + float(length))
    return max(ends)
