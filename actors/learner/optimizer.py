"""AdamW on float32 masters with gradient clipping. Refuses gradients that are not finite; lr 0 touches nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from headrace.actors.learner.schedule import AdamSettings


class Optimizer:
    def __init__(self, parameters: Iterable[nn.Parameter], settings: AdamSettings) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self._clip = settings.clip_grad_norm
        groups = [
            {"params": [p for p in self._parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in self._parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], betas=settings.betas, eps=settings.eps, lr=0.0, fused=True
        )

    def step(self, lr: float) -> tuple[float, bool]:
        """Clip, step and clear the gradients. Returns (gradient norm before clipping, whether a step was taken).

        No step is taken where the norm is not finite, nor at lr 0, which leaves every weight as it was, bit for bit.
        """
        norm = float(nn.utils.clip_grad_norm_(self._parameters, self._clip or float("inf")))
        applied = lr > 0 and norm == norm and norm != float("inf")
        if applied:
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return norm, applied

    def clear(self) -> None:
        """Forget gradients that were accumulated."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return self._adam.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state)
