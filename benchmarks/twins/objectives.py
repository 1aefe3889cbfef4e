"""The objectives of docs/algorithms/objectives.md, one token at a time. Settings are the papers' letters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from twins.tokens import Number, Token, clip, ratio, smaller


def is_reinforce(tokens: Sequence[Token], *, c: float = 5.0, low: float = 0.05, high: float = 10.0) -> list[Number]:
    out: list[Number] = []
    for token in tokens:
        w = ratio(token.held - token.mu).real
        out.append(min(w, c) * token.advantage * token.logp if low <= w <= high else 0.0)
    return out


def cispo(
    tokens: Sequence[Token], *, eps_low: float | None = None, eps_high: float = 5.0, over: str = "w"
) -> list[Number]:
    out: list[Number] = []
    for token in tokens:
        r = ratio(token.held - (token.mu if over == "w" else token.old)).real
        r = min(r, 1 + eps_high)
        if eps_low is not None:
            r = max(r, 1 - eps_low)
        out.append(r * token.advantage * token.logp)
    return out


def grpo(tokens: Sequence[Token], *, eps_low: float = 0.2, eps_high: float = 0.2) -> list[Number]:
    out: list[Number] = []
    for token in tokens:
        rho = ratio(token.logp - token.old)
        out.append(smaller(rho * token.advantage, clip(rho, 1 - eps_low, 1 + eps_high) * token.advantage))
    return out


def gspo(tokens: Sequence[Token], *, eps_low: float = 3e-4, eps_high: float = 4e-4) -> list[Number]:
    """Eq. 5: one term a sequence; here at each of its tokens, so that their mean is that term."""
    total: Number = 0.0
    for token in tokens:
        total += token.logp - token.old
    s = ratio(total / len(tokens))
    a = tokens[0].advantage
    term = smaller(s * a, clip(s, 1 - eps_low, 1 + eps_high) * a)
    return [term] * len(tokens)


def decoupled_ppo(
    tokens: Sequence[Token], *, eps_low: float = 0.2, eps_high: float = 0.2, cap: float = 5.0, interpolate: bool = False
) -> list[Number]:
    out: list[Number] = []
    for token in tokens:
        old = token.old
        if interpolate:
            v_theta, v_mu = 0, -token.lag
            v_old = v_theta - 1
            alpha = 1.0 if v_theta == v_mu else (v_old - v_mu) / (v_theta - v_mu)
            old = token.mu + alpha * (token.held - token.mu)
        m = min(ratio(old - token.mu).real, cap)
        rho = ratio(token.logp - old)
        out.append(m * smaller(rho * token.advantage, clip(rho, 1 - eps_low, 1 + eps_high) * token.advantage))
    return out


def topr(tokens: Sequence[Token]) -> list[Number]:
    log_product = 0.0
    for token in tokens:
        log_product += token.held - token.mu
    tapered = min(max(ratio(log_product).real, 0.0), 1.0)
    return [(1.0 if token.advantage > 0 else tapered) * token.advantage * token.logp for token in tokens]


def dppo(tokens: Sequence[Token], *, threshold: float = 0.2, tau: float = 1e-3) -> list[Number]:
    out: list[Number] = []
    for token in tokens:
        moved = math.exp(token.held) - math.exp(token.mu)
        dropped = moved > threshold if token.advantage > 0 else token.advantage < 0 and moved < -threshold
        log_w = clip(token.logp - token.mu, -20.0, 20.0)
        out.append((0.0 if dropped else ratio(log_w) * token.advantage) - tau * log_w * log_w)
    return out


def cross_entropy(tokens: Sequence[Token]) -> list[Number]:
    return [token.logp for token in tokens]
