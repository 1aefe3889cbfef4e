"""From rewards and values of single tokens to what each token is credited with. Pure NumPy, float64 inside.

All arrays hold the T trained tokens of one sequence, in order. What stands between them (tool output) is no state of
its own: after a trained token comes the next trained one. A sequence is over after its last, whose next state is worth
0; also where it was cut off (`Trajectory.ending` "truncated", "context_full"): its grade is then all that it gets, and
a value of where it might have gone would credit what no reward ever confirms.
"""

from __future__ import annotations

import numpy as np


def returns_to_go(rewards_T: np.ndarray) -> np.ndarray:
    """float[T] of one sequence's trained tokens → float[T], the sum from each token to the end."""
    returns_T: np.ndarray = np.cumsum(rewards_T[::-1])[::-1]
    return returns_T


def token_rewards(reward: float, penalties_T: np.ndarray) -> np.ndarray:
    """float64[T]: what each token costs (KL in the reward), and the reward of the whole at the last."""
    rewards_T = -penalties_T.astype(np.float64)
    rewards_T[-1] += reward
    return rewards_T


def discounted_returns(rewards_T: np.ndarray, gamma: float) -> np.ndarray:
    """float64[T]: G_t = r_t + gamma · G_{t+1}."""
    return _to_the_end(rewards_T, np.full(len(rewards_T), gamma))


def gae(rewards_T: np.ndarray, values_T: np.ndarray, *, gamma: float, gae_lambda: float) -> np.ndarray:
    """float64[T]: generalised advantage estimation (J. Schulman et al., arXiv 1506.02438, eq. 16),

        A_t = sum over l >= 0 of (gamma lambda)^l delta_{t+l},   delta_t = r_t + gamma V_{t+1} − V_t

    What V is to become is A + V, the lambda-return.
    """
    return _to_the_end(_deltas(rewards_T, values_T, gamma), np.full(len(values_T), gamma * gae_lambda))


def vtrace(
    rewards_T: np.ndarray,
    values_T: np.ndarray,
    ratios_T: np.ndarray,
    *,
    gamma: float,
    gae_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[np.ndarray, np.ndarray]:
    """→ advantages and what V is to become, float64[T] each (L. Espeholt et al., "IMPALA", arXiv 1802.01561, eq. 1),

        v_s = V_s + sum over t >= s of gamma^(t−s) (product of c_i, s <= i < t) rho_t delta_t
        A_s = r_s + gamma v_{s+1} − V_s

    with rho_t = min(rho_bar, pi_old / mu) and c_i = lambda min(c_bar, pi_old / mu); ratios_T: pi_old / mu. The gradient
    of IMPALA has rho_s before A_s, which is left to whoever weighs the gradient.
    """
    rho_T = np.minimum(rho_bar, ratios_T.astype(np.float64))
    c_T = gae_lambda * np.minimum(c_bar, ratios_T.astype(np.float64))
    targets_T = values_T + _to_the_end(rho_T * _deltas(rewards_T, values_T, gamma), gamma * c_T)
    advantages_T = rewards_T + gamma * _next(targets_T) - values_T
    return advantages_T, targets_T


def _deltas(rewards_T: np.ndarray, values_T: np.ndarray, gamma: float) -> np.ndarray:
    deltas_T: np.ndarray = rewards_T + gamma * _next(values_T) - values_T
    return deltas_T


def _next(values_T: np.ndarray) -> np.ndarray:
    """V of the state after each token; 0 after the last."""
    return np.append(values_T[1:].astype(np.float64), 0.0)


def _to_the_end(terms_T: np.ndarray, decay_T: np.ndarray) -> np.ndarray:
    """float64[T]: x_t = terms_t + decay_t · x_{t+1}."""
    out_T = np.zeros(len(terms_T))
    following = 0.0
    for t in range(len(terms_T) - 1, -1, -1):
        following = float(terms_T[t]) + float(decay_T[t]) * following
        out_T[t] = following
    return out_T


def whiten(parts: list[np.ndarray], epsilon: float = 1e-8) -> list[np.ndarray]:
    """The same arrays with mean 0 and deviation 1 over all their numbers together; all 0 where these are equal."""
    whole_N = np.concatenate(parts)
    mean, std = whole_N.mean(), whole_N.std()
    return [(part - mean) / (std + epsilon) for part in parts]
