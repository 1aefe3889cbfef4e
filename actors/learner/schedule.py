"""How the optimizer is set: AdamW's constants, and the learning rate by step (warm-up, then constant, linear or
cosine). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class LearningRate:
    """peak: the rate after `warmup_steps`. Decay ends at peak · min_ratio at `total_steps` and stays there."""

    peak: float
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    min_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak) and self.peak >= 0):
            raise ValueError(f"lr must be finite and >= 0, got {self.peak}; 0 trains nothing and changes no weight")
        if self.schedule not in ("constant", "linear", "cosine"):
            raise ValueError(f"lr_schedule must be constant, linear or cosine, got {self.schedule!r}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be >= 0, got {self.warmup_steps}")
        if not 0 <= self.min_ratio <= 1:
            raise ValueError(f"min_lr_ratio must be in [0, 1], got {self.min_ratio}")
        if self.schedule != "constant" and self.total_steps <= self.warmup_steps:
            raise ValueError(
                f"lr_schedule {self.schedule} needs more steps than warmup_steps, got {self.total_steps} steps and "
                f"{self.warmup_steps} of warm-up; raise max_steps or use lr_schedule=constant"
            )

    def at(self, step: int) -> float:
        """The rate of the optimizer step that follows `step` steps done."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.peak
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak * (self.min_ratio + (1.0 - self.min_ratio) * left)


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """clip_grad_norm 0 does not clip. Vectors (norms, biases) are never decayed."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ValueError(f"eps must be finite and > 0, got {self.eps}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be finite and >= 0, got {self.weight_decay}")
        if not (math.isfinite(self.clip_grad_norm) and self.clip_grad_norm >= 0):
            raise ValueError(f"clip_grad_norm must be finite and >= 0, got {self.clip_grad_norm}; 0 does not clip")
