"""The critic at work: the value head, its loss, and what it credits the tokens of a batch with.

V(s_t), the value before token t, is read off the hidden state that predicts t, which the policy's own head reads too.
The value head belongs to no model: it is published to no engine, and no exported folder holds it. Called by the
trainer, in the learner's worker thread; the optimizer is the trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from headrace.actors.learner.credit import discounted_returns, gae, token_rewards, vtrace, whiten
from headrace.actors.learner.critic import CriticSettings
from headrace.actors.learner.objectives.protocol import MAX_ABS_LOG_RATIO


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """Of each sequence of a batch, by trained token, float64: A; V as it was before the batch; what V is to become.
    `figures`: for the monitor."""

    advantages: list[np.ndarray]
    values: list[np.ndarray]
    targets: list[np.ndarray]
    figures: dict[str, float]


class Critic:
    """`head`: float32, whatever the layers are computed in. V is 0 everywhere at first: an advantage is then the return
    itself, and no noise of a random head."""

    def __init__(self, settings: CriticSettings, *, hidden_size: int, device: torch.device) -> None:
        self.settings = settings
        self.head = _make_head(hidden_size, settings.mlp_width).to(device)

    @property
    def needs_ratios(self) -> bool:
        """Whether `credit` asks for pi_old / mu."""
        return self.settings.estimator == "vtrace"

    def values(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """V, float32[N], with gradient into the head, and into `hidden_NH` unless `detach`."""
        if self.settings.detach:
            hidden_NH = hidden_NH.detach()
        values_N: torch.Tensor = self.head(hidden_NH.float())[:, 0]
        return values_N

    def loss(
        self, values_N: torch.Tensor, old_N: torch.Tensor, targets_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See value_loss."""
        return value_loss(values_N, old_N, targets_N, clip=self.settings.value_clip)

    def credit(
        self,
        rewards: Sequence[float],
        values: Sequence[np.ndarray],
        *,
        penalties: Sequence[np.ndarray] | None,
        log_ratios: Sequence[np.ndarray] | None,
        weighs: bool,
    ) -> Credit:
        """`rewards`, `values`: of each sequence; `penalties`: what each token costs, where KL is in the reward;
        `log_ratios`: log(pi_old / mu), where it `needs_ratios`. `weighs`: whether V-trace's rho is to stand in the
        advantages, since the objective and its corrections weigh by no such ratio."""
        settings = self.settings
        advantages, targets, returns = [], [], []
        weights: list[np.ndarray] = []
        for i, (reward, values_T) in enumerate(zip(rewards, values, strict=True)):
            rewards_T = token_rewards(reward, np.zeros(len(values_T)) if penalties is None else penalties[i])
            if settings.estimator == "vtrace":
                if log_ratios is None:
                    raise ValueError("V-trace needs log(pi_old / mu) of every token")
                ratios_T = np.exp(np.clip(log_ratios[i].astype(np.float64), -MAX_ABS_LOG_RATIO, MAX_ABS_LOG_RATIO))
                advantages_T, targets_T = vtrace(
                    rewards_T,
                    values_T,
                    ratios_T,
                    gamma=settings.gamma,
                    gae_lambda=settings.gae_lambda,
                    rho_bar=settings.rho_bar,
                    c_bar=settings.c_bar,
                )
                weights.append(np.minimum(settings.rho_bar, ratios_T))
            else:
                advantages_T = gae(rewards_T, values_T, gamma=settings.gamma, gae_lambda=settings.gae_lambda)
                targets_T = advantages_T + values_T
            advantages.append(advantages_T)
            targets.append(targets_T)
            returns.append(discounted_returns(rewards_T, settings.gamma))
        figures = _figures(advantages, list(values), returns)
        if settings.whiten:
            advantages = whiten(advantages)
        if weighs and weights:
            advantages = [a * w for a, w in zip(advantages, weights, strict=True)]
        return Credit(advantages, list(values), targets, figures)


def value_loss(
    values_N: torch.Tensor, old_N: torch.Tensor, targets_N: torch.Tensor, *, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's: ½ max((V − R)², (V_old + clamp(V − V_old, ±clip) − R)²) by token, float[N]; and where the clip took hold,
    bool[N]: V has gone further than that towards R already, and has no gradient."""
    plain_N = (values_N - targets_N) ** 2
    if clip is None:
        return 0.5 * plain_N, torch.zeros_like(values_N, dtype=torch.bool)
    moved_N = values_N - old_N
    bounded_N = (old_N + moved_N.clamp(-clip, clip) - targets_N) ** 2
    clipped_N = (moved_N.abs() > clip) & (bounded_N > plain_N)  # within the clip the two differ by rounding
    return 0.5 * torch.maximum(plain_N, bounded_N), clipped_N


def _make_head(hidden_size: int, mlp_width: int) -> nn.Module:
    last = nn.Linear(mlp_width or hidden_size, 1, dtype=torch.float32)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    if not mlp_width:
        return last
    return nn.Sequential(nn.Linear(hidden_size, mlp_width, dtype=torch.float32), nn.Tanh(), last)


def _figures(advantages: list[np.ndarray], values: list[np.ndarray], returns: list[np.ndarray]) -> dict[str, float]:
    """Over the tokens of the batch, before whitening. `value/explained_variance`: of the returns by V as it was before
    the batch, 1 − Var(G − V) / Var(G); absent where all returns are equal."""
    advantages_N, values_N, returns_N = (np.concatenate(parts) for parts in (advantages, values, returns))
    figures = {
        "advantage/mean": float(advantages_N.mean()),
        "advantage/std": float(advantages_N.std()),
        "value/mean": float(values_N.mean()),
        "value/return_mean": float(returns_N.mean()),
    }
    if np.ptp(returns_N) > 0:
        figures["value/explained_variance"] = float(1 - np.var(returns_N - values_N) / np.var(returns_N))
    return figures
