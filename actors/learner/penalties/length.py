"""Concave length penalty: the first tokens cost most, so that easy tasks become short and hard ones may stay long.

    C(x) = ((1 + kx)^(1−q) − 1) / (k(1−q)),   log(1 + kx) / k at q = 1;   x = sum of weight · count

Composer 2 technical report, arXiv 2603.24477. There x also tells thinking from tool-call tokens. A trajectory does not
record where in a turn its thinking ends, so that both are `working_tokens` here; nothing is guessed from text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.actors.session import Trajectory

COUNTS = ("working_tokens", "final_tokens", "tool_output_tokens", "tool_calls", "turns")


class ConcaveLength:
    """coefficient: reward lost by unit of C(x), which begins with slope 1. k: > 0, how soon the slope falls: it is
    (1 + kx)^(−q). q: >= 0; 0 is linear. weights: by name, >= 0:

    working_tokens:     sampled before the last turn (thinking and tool calls)
    final_tokens:       sampled in the last turn, its thinking included
    tool_output_tokens: put in after the first sampled token (tool output, users' answers and the template around them)
    tool_calls:         parsed out of assistant messages
    turns:              generations
    """

    def __init__(self, *, coefficient: float, weights: Mapping[str, float], k: float = 1e-3, q: float = 0.5) -> None:
        for name, value, allowed in (("coefficient", coefficient, coefficient > 0), ("k", k, k > 0), ("q", q, q >= 0)):
            if not allowed or not math.isfinite(value):
                least = "finite and >= 0" if name == "q" else "finite and > 0"
                raise ValueError(f"penalties.length.{name} must be {least}, got {value}")
        unknown = sorted(set(weights) - set(COUNTS))
        if unknown:
            raise ValueError(
                f"penalties.length.weights has no {', '.join(unknown)}; what can be counted is {', '.join(COUNTS)}"
            )
        if not weights or not all(0 <= weight < math.inf for weight in weights.values()) or not any(weights.values()):
            raise ValueError(
                f"penalties.length.weights must be >= 0 and finite, one of them > 0, got {dict(weights)}; for no "
                "penalty leave it out of learner/penalties"
            )
        self._coefficient = coefficient
        self._weights = dict(weights)
        self._k = k
        self._q = q

    def __call__(self, trajectory: Trajectory) -> float:
        counts = length_counts(trajectory)
        x = math.fsum(weight * counts[name] for name, weight in self._weights.items())
        return self._coefficient * concave(x, self._k, self._q)


def concave(x: float, k: float, q: float) -> float:
    """C(x), for x >= 0; exact near q = 1 and for small kx too."""
    log = math.log1p(k * x)
    return (log if q == 1 else math.expm1((1 - q) * log) / (1 - q)) / k


def length_counts(trajectory: Trajectory) -> dict[str, int]:
    """COUNTS → what the trajectory has of it. Without turns everything sampled belongs to the last one."""
    mask = trajectory.loss_mask
    last = trajectory.turns[-1].start if trajectory.turns else 0
    final = int(np.count_nonzero(mask[last:]))
    sampled = np.flatnonzero(mask)
    first = int(sampled[0]) if len(sampled) else len(mask)
    return {
        "working_tokens": len(sampled) - final,
        "final_tokens": final,
        "tool_output_tokens": int(np.count_nonzero(~mask[first:])),
        "tool_calls": sum(len(message.tool_calls) for message in trajectory.messages if message.role == "assistant"),
        "turns": len(trajectory.turns),
    }
