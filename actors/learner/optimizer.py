"""AdamW on float32 masters with gradient clipping. Refuses gradients that are not finite; lr 0 touches nothing.

A value head beside the policy has a learning rate of its own, and its gradient is clipped by itself, to the same norm:
what the critic has yet to learn must not shorten the policy's step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from headrace.actors.learner.schedule import AdamSettings
from headrace.transport.weights.layout import whole

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """head, head_lr: of the value head; head_lr holds at every step, whatever `step` is given, but for 0."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        settings: AdamSettings,
        *,
        head: Iterable[nn.Parameter] = (),
        head_lr: float = 0.0,
    ) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self._head = list(head)
        self._head_lr = head_lr
        self._clip = settings.clip_grad_norm
        groups = _groups(self._parameters, settings.weight_decay)
        self._num_scheduled = len(groups)
        self._adam = torch.optim.AdamW(
            groups + _groups(self._head, settings.weight_decay),
            betas=settings.betas,
            eps=settings.eps,
            lr=0.0,
            fused=True,
        )

    def step(self, lr: float) -> tuple[float, bool]:
        """Clip, step and clear the gradients. Returns (the policy's gradient norm before clipping, whether a step was
        taken).

        No step is taken where a norm is not finite, nor at lr 0, which leaves every weight as it was, bit for bit.
        """
        norm = self._clipped(self._parameters)
        head_norm = self._clipped(self._head) if self._head else 0.0
        applied = lr > 0 and math.isfinite(norm) and math.isfinite(head_norm)
        if applied:
            for number, group in enumerate(self._adam.param_groups):
                group["lr"] = lr if number < self._num_scheduled else self._head_lr
            self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return norm, applied

    def _clipped(self, parameters: list[nn.Parameter]) -> float:
        norm = nn.utils.clip_grad_norm_(parameters, self._clip or float("inf"))
        return float(whole(norm))

    def clear(self) -> None:
        """Forget gradients that were accumulated."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return self._adam.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Of the state, by number of the weight and name, the very memory; made where no step was taken yet."""
        numbered = [p for group in self._adam.param_groups for p in group["params"]]
        for p in numbered:
            if not self._adam.state[p]:
                self._adam.state[p] = {"step": torch.zeros((), device=p.device)}
                self._adam.state[p] |= {name: torch.zeros_like(p, requires_grad=False) for name in _MOMENTS}
        return {
            f"{i}.{name}": self._adam.state[p][name] for i, p in enumerate(numbered) for name in ("step", *_MOMENTS)
        }

    def groups(self) -> list[dict[str, Any]]:
        """What belongs to no tensor."""
        groups: list[dict[str, Any]] = self._adam.state_dict()["param_groups"]
        return groups


def _groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
