"""Twins of `headrace.actors.learner.credit` and of the value loss: the sums of the papers, written out. Lists of
floats, one entry a trained token; the value after the last one is 0."""

from __future__ import annotations

import math
from collections.abc import Sequence


def _delta(rewards: Sequence[float], values: Sequence[float], gamma: float, t: int) -> float:
    following = values[t + 1] if t + 1 < len(values) else 0.0
    return rewards[t] + gamma * following - values[t]


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    return [math.fsum(gamma**i * r for i, r in enumerate(rewards[t:])) for t in range(len(rewards))]


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """arXiv 1506.02438, eq. 16, its infinite sum ended with the episode."""
    num = len(rewards)
    return [
        math.fsum((gamma * lam) ** i * _delta(rewards, values, gamma, t + i) for i in range(num - t))
        for t in range(num)
    ]


def gae_of_steps(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The same as its section 3 introduces it, eqs. 11 to 16: the mean of the k-step estimators with weights
    (1 − lam) lam^(k−1), of which those that reach the end share the rest."""
    num, out = len(rewards), []
    for t in range(num):
        steps = [
            math.fsum(gamma**i * rewards[t + i] for i in range(k))
            + (gamma**k * values[t + k] if t + k < num else 0.0)
            - values[t]
            for k in range(1, num - t + 1)
        ]
        out.append(
            (1 - lam) * math.fsum(lam**k * a for k, a in enumerate(steps[:-1])) + lam ** (num - t - 1) * steps[-1]
        )
    return out


def vtrace_targets(
    rewards: Sequence[float],
    values: Sequence[float],
    ratios: Sequence[float],
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> list[float]:
    """arXiv 1802.01561, eq. 1, with c_i = lam min(c_bar, ratio) (its remark 2)."""
    num = len(rewards)
    return [
        values[s]
        + math.fsum(
            gamma ** (t - s)
            * math.prod(lam * min(c_bar, ratios[i]) for i in range(s, t))
            * min(rho_bar, ratios[t])
            * _delta(rewards, values, gamma, t)
            for t in range(s, num)
        )
        for s in range(num)
    ]


def vtrace_advantages(
    rewards: Sequence[float], values: Sequence[float], targets: Sequence[float], gamma: float
) -> list[float]:
    """What stands behind rho_s in its policy gradient, section 4.2: r_s + gamma v_{s+1} − V(x_s)."""
    after = [*targets[1:], 0.0]
    return [r + gamma * v - value for r, v, value in zip(rewards, after, values, strict=True)]


def value_loss(value: float, old: float, target: float, clip: float | None) -> tuple[float, float]:
    """→ the loss of one token, and its slope by `value`: ½ max((V − R)², (V_old + clip(V − V_old) − R)²)."""
    plain = (value - target) ** 2
    if clip is None:
        return plain / 2, value - target
    near = old + min(clip, max(-clip, value - old))
    bounded = (near - target) ** 2
    if bounded > plain:
        return bounded / 2, (near - target) if abs(value - old) <= clip else 0.0
    return plain / 2, value - target
